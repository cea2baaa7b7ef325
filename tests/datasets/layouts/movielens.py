"""The raw layout of MovieLens 1M, some lines of it."""

from tests.datasets.raw_files import write

USERS = ["1::F::1::10::48067", "2::M::56::16::70072"]
MOVIES = [
    "10::Toy Story (1995)::Animation|Children's|Comedy",
    "20::Star Wars: Episode IV (1977)::Action",
    "30::Misérables, Les (1995)::Drama",
]
RATINGS = [
    "1::10::5::100",
    "1::20::4::100",
    "1::30::3::200",
    "1::10::4::300",
    "2::30::1::50",
    "2::99::5::60",
]


def raw_1m(folder, ratings=RATINGS):
    files = {"ratings.dat": ratings, "users.dat": USERS, "movies.dat": MOVIES}
    return write(folder / "ml-1m", files, "latin-1").parent
