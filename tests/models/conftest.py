import pytest


@pytest.fixture(autouse=True)
def one_thread(threads):
    threads(1)  # small problems: a team of threads would only wait for each other
