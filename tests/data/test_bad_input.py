"""Bad input: one sentence that names file, line, column and value, and nothing left behind."""

import dataclasses
import errno
import gzip
import shutil

import pytest

from hotrows.data import EncodedData, Encoder, draft_schema, prepare
from hotrows.data.stored import sections
from hotrows.runtime.atomic_files import publish
from hotrows.schema import Schema, Sparse
from tests.data.raw import SCHEMA, write
from tests.reference.rows_of_data import use_plain_python

GOOD = ("0", "1", "user", "item")
HEADED = Schema(features=SCHEMA.features, delimiter=",", name="headed")


@pytest.fixture(params=["native", "plain"], autouse=True)
def both(request, monkeypatch):
    if request.param == "plain":
        use_plain_python(monkeypatch)


def refused(tmp_path, schema=SCHEMA, name="raw", threads=2, **options) -> str:
    """The message with which preparing the file is refused; nothing may be left of it."""
    with pytest.raises(ValueError) as error:
        prepare([tmp_path / name], schema, tmp_path / "out", threads=threads, **options)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.part").exists()
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(tmp_path) + "/", "")


def test_too_few_columns(tmp_path):
    write(tmp_path / "raw", [GOOD, GOOD, GOOD[:3]])
    assert refused(tmp_path).startswith(r"raw line 3, expected 4 columns between '\t', found 3; ")


def test_too_many_columns(tmp_path):
    write(tmp_path / "raw", [GOOD, (*GOOD, "more")])
    assert "raw line 2, expected 4 columns" in refused(tmp_path)


def test_a_blank_line_between_rows(tmp_path):
    (tmp_path / "raw").write_bytes(b"0\t1\ta\tb\n\n0\t1\ta\tb\n")
    assert "raw line 2, expected 4 columns between '\\t', found 1" in refused(tmp_path)


def test_a_letter_in_a_number(tmp_path):
    write(tmp_path / "raw", [GOOD, ("0", "12a", "user", "item")])
    assert refused(tmp_path).startswith("raw line 2, column 'price': expected a number, found '12a';")


def test_a_word_for_a_missing_number_is_said_to_be_one(tmp_path):
    """It said to correct the row, though a word in the schema is all that it takes."""
    write(tmp_path / "raw", [GOOD, ("0", "NA", "user", "item")])
    said = refused(tmp_path)
    words = '"missing": {"price": ["NA"]}'
    assert said.endswith(f"found 'NA'; if 'NA' means missing, say so in the schema: {words}")
    schema = dataclasses.replace(SCHEMA, missing={"price": ("NA",)})
    data = prepare([tmp_path / "raw"], schema, tmp_path / "out", split="fraction:1,0,0")
    assert data.parts["train"].missing["price"] == 1


@pytest.mark.parametrize("value", ["2", "", "yes", "0.5", "-1"])
def test_a_label_other_than_0_or_1(tmp_path, value):
    write(tmp_path / "raw", [GOOD, (value, "x", "user", "item")])
    shown_value = repr(value) if value else "nothing"
    expected = f"raw line 2, column 'label': expected a label 0 or 1, found {shown_value};"
    assert refused(tmp_path).startswith(expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_smallest_line_is_named_whatever_the_threads(tmp_path, threads):
    rows = [GOOD] * 1000
    rows[400], rows[600], rows[999] = ("0", "x", "", ""), ("2", "1", "", ""), ("0",)
    write(tmp_path / "raw", rows)
    assert "line 401, column 'price'" in refused(tmp_path, threads=threads)
    rows[400], rows[399] = GOOD, ("0", "1")
    write(tmp_path / "raw", rows)
    assert "line 400, expected 4 columns" in refused(tmp_path, threads=threads)


def test_lines_are_counted_in_each_file(tmp_path):
    write(tmp_path / "one", [GOOD] * 5)
    write(tmp_path / "two", [GOOD, ("7", *GOOD[1:])])
    with pytest.raises(ValueError, match="two line 2, column 'label'"):
        prepare([tmp_path / "one", tmp_path / "two"], SCHEMA, tmp_path / "out")


def test_a_header_counts_as_a_line(tmp_path):
    write(tmp_path / "raw", [("label", "price", "user", "item"), GOOD, ("0", "?", "", "")], ",")
    assert "raw line 3, column 'price'" in refused(tmp_path, HEADED)


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_a_header_without_a_column(tmp_path, delimiter):
    """Without the delimiter in the schema, all columns were missing, and it asked for the delimiter."""
    write(tmp_path / "raw", [("label", "price", "item"), ("0", "1", "x")], ",")
    message = refused(tmp_path, dataclasses.replace(HEADED, delimiter=delimiter))
    assert "raw line 1: the header lacks the columns ['user']" in message
    assert "'label', 'price', 'item'; correct the schema" in message


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_a_delimiter_that_the_schema_does_not_say_is_found_from_the_header(tmp_path, delimiter):
    """Without a word it was a tab; a file with commas was refused."""
    write(tmp_path / "raw", [("label", "price", "user", "item"), GOOD], delimiter)
    schema = dataclasses.replace(SCHEMA, columns=None)
    data = prepare([tmp_path / "raw"], schema, tmp_path / "out", split="fraction:1,0,0")
    assert data.parts["train"].rows == 1
    write(tmp_path / "new", [("item", "user", "price"), ("x", "a", "1")], delimiter)  # without a label
    (batch,) = Encoder.open(tmp_path / "out").encode(tmp_path / "new")
    assert batch.size == 1


def test_a_delimiter_that_gives_other_columns_is_named(tmp_path):
    write(tmp_path / "raw", [("clicked", "cost", "visitor", "thing"), GOOD], ",")
    said = r"Is the delimiter '\t'? Write delimiter=',' in the schema"
    assert refused(tmp_path, dataclasses.replace(SCHEMA, columns=None)).endswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"# of a tool\nlabel,price,user,item\n0,1,a,x\n", "leave out the lines before the one"),
        (b"sep=,\nlabel,price,user,item\n0,1,a,x\n", "leave out the lines before the one"),
        (b"label,price,user,item\r0,1,a,x\r", r"line 1: lines end with a carriage return alone"),
    ],
)
def test_lines_of_other_programs_are_refused_by_name(tmp_path, text, said):
    (tmp_path / "raw").write_bytes(text)
    assert said in refused(tmp_path, HEADED)
    if b"\r" in text:
        with pytest.raises(ValueError, match=said):
            draft_schema(tmp_path / "raw")


def test_a_table_of_other_columns_than_those_declared_is_not_of_another_width(tmp_path):
    """The message was `expected 4 columns, found 4`."""
    with pytest.raises(ValueError, match=r"the table lacks the columns \['label'\]"):
        prepare({name: ["1"] for name in ("y", *SCHEMA.columns[1:])}, SCHEMA, tmp_path / "out")


def test_a_header_without_a_label(tmp_path):
    write(tmp_path / "raw", [("price", "user", "item"), ("1", "a", "b")], ",")
    message = refused(tmp_path, HEADED)
    assert "the header lacks the columns ['label']" in message
    assert message.endswith("; training needs the label, and `hotrows predict` does not")


def test_quotes_between_tabs_are_named(tmp_path):
    """R writes them. The header was said to be missing, and a draft had a column '"user"'."""
    names = [f'"{name}"' for name in SCHEMA.columns]
    write(tmp_path / "raw", [names, *[(str(n % 2), str(n), '"u"', f'"{n % 3}"') for n in range(9)]])
    said = "double quotes between tabs are part of names and values"
    assert said in refused(tmp_path, dataclasses.replace(SCHEMA, columns=None))
    assert said in str(draft_schema(tmp_path / "raw").notes)


def test_a_header_that_has_some_columns_raises_no_doubt_about_the_delimiter(tmp_path):
    write(tmp_path / "raw", [("label", "price", "item"), ("0", "1", "x")], ",")
    assert refused(tmp_path, HEADED).endswith("; correct the schema")


def test_a_header_is_named_in_few_words_whatever_is_in_it(tmp_path):
    """40 letters of a name that are not printable came out as 240; all columns of a schema were named."""
    (tmp_path / "raw").write_bytes(b",".join([b"\xc2\x80\x01" * 90] * 90) + b"\n")
    many = Schema(tuple(Sparse(f"feature_{i}") for i in range(400)), delimiter=",", name="many")
    message = refused(tmp_path, many)
    assert "lacks the columns ['feature_0', 'feature_1'," in message
    assert "and 389 more] that schema 'many' reads" in message
    assert len(message) < 1200


def test_a_header_that_names_a_column_twice(tmp_path):
    write(tmp_path / "raw", [("label", "price", "user", "item", "user"), (*GOOD, "x")], ",")
    assert "the header names the columns ['user'] twice" in refused(tmp_path, HEADED)


def test_a_header_alone(tmp_path):
    write(tmp_path / "raw", [("label", "price", "user", "item")], ",")
    assert "raw file raw has no lines after its header" in refused(tmp_path, HEADED)


def test_no_label_column(tmp_path):
    write(tmp_path / "raw", [GOOD[1:]])
    assert "the column of the label, 'label', is missing" in refused(tmp_path)


def test_quotes(tmp_path):
    write(tmp_path / "raw", [("label", "price", "user", "item"), ("0", "1", '"a', "b")], ",")
    assert "raw line 2, column 'user': the quoted field does not end" in refused(tmp_path, HEADED)
    write(tmp_path / "raw", [("label", "price", "user", "item"), ("0", "1", '"a"b', "b")], ",")
    assert "column 'user': the quoted field is followed by text" in refused(tmp_path, HEADED)


@pytest.mark.parametrize("content", [b"", b"\n\n\r\n"])
def test_an_empty_file(tmp_path, content):
    (tmp_path / "raw").write_bytes(content)
    assert "raw file raw" in refused(tmp_path)


def test_a_missing_file_and_a_folder(tmp_path):
    assert "raw file raw does not exist" in refused(tmp_path)
    (tmp_path / "raw").mkdir()
    assert "folder raw holds no files to read" in refused(tmp_path)


def test_no_file(tmp_path):
    with pytest.raises(ValueError, match="no raw files to prepare"):
        prepare([], SCHEMA, tmp_path / "out")


def test_gzip_that_is_cut_off_or_damaged(tmp_path):
    compressed = gzip.compress(b"0\t1\tuser\titem\n" * 10_000)
    (tmp_path / "raw").write_bytes(compressed[: len(compressed) // 2])
    assert "raw is no whole gzip file" in refused(tmp_path)
    (tmp_path / "raw").write_bytes(compressed[:20] + b"garbage" + compressed[27:])
    assert "raw is no whole gzip file" in refused(tmp_path)
    (tmp_path / "raw").write_bytes(b"\x1f\x8bgarbage")
    assert "raw is no whole gzip file" in refused(tmp_path)


def test_no_row_to_train_on(tmp_path):
    write(tmp_path / "raw", [GOOD])
    assert "the training part has none of the 1 rows" in refused(tmp_path, split="position:0.5,0,0.5")


def test_features_that_disagree_about_a_vocabulary(tmp_path):
    features = (Sparse("a", vocabulary="v"), Sparse("b", vocabulary="v", min_count=2))
    schema = Schema(features=features, columns=("label", "a", "b"))
    assert "features 'a' and 'b' share vocabulary 'v'" in refused(tmp_path, schema)


def test_prepared_data_is_replaced_only_where_that_is_said(tmp_path):
    """The second run of a notebook failed at `prepare`, and no argument helped."""
    write(tmp_path / "raw", [GOOD] * 9)
    out, every = tmp_path / "out", {"split": "fraction:1,0,0"}
    assert prepare([tmp_path / "raw"], SCHEMA, out, **every).parts["train"].rows == 9
    write(tmp_path / "raw", [GOOD] * 5)
    with pytest.raises(
        ValueError, match="out exists and is no empty folder: it has prepared data; replace"
    ):
        prepare([tmp_path / "raw"], SCHEMA, out, **every)
    write(tmp_path / "bad", ["x"])
    with pytest.raises(ValueError, match="line 1"):
        prepare([tmp_path / "bad"], SCHEMA, out, overwrite=True, **every)
    assert EncodedData.open(out).parts["train"].rows == 9
    assert prepare([tmp_path / "raw"], SCHEMA, out, overwrite=True, **every).parts["train"].rows == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "out", "raw"]
    (tmp_path / "out.old").mkdir()  # somebody's own, which an overwrite deleted
    prepare([tmp_path / "raw"], SCHEMA, out, overwrite=True, **every)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "out", "out.old", "raw"]
    shutil.rmtree(out)
    out.mkdir()
    (out / "precious").write_text("")
    with pytest.raises(ValueError, match="out exists and is no empty folder; delete it"):
        prepare([tmp_path / "raw"], SCHEMA, out, overwrite=True, **every)


def test_what_is_replaced_comes_back_where_the_new_folder_cannot_be_renamed(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "data.json").write_text("old")
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "absent", tmp_path / "out", replaces=True)
    assert (tmp_path / "out" / "data.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("delimiter", ["::", "", "\n", '"', "ä"])
def test_other_delimiters(tmp_path, delimiter):
    write(tmp_path / "raw", [GOOD])
    schema = Schema(features=SCHEMA.features, columns=SCHEMA.columns, delimiter=delimiter)
    assert "the delimiter must be one character" in refused(tmp_path, schema)


def test_a_folder_in_the_way_is_left_alone(tmp_path):
    write(tmp_path / "raw", [GOOD] * 9)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("")
    with pytest.raises(ValueError, match="out exists and is no empty folder"):
        prepare([tmp_path / "raw"], SCHEMA, tmp_path / "out")
    assert (tmp_path / "out" / "precious").exists()
    (tmp_path / "out" / "precious").unlink()
    prepare([tmp_path / "raw"], SCHEMA, tmp_path / "out", split="fraction:1,0,0")


def test_a_run_beside_is_left_alone(tmp_path):
    write(tmp_path / "raw", [GOOD])
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "precious").write_text("")
    with pytest.raises(ValueError, match=r"out\.part exists and is not of this preparation"):
        prepare([tmp_path / "raw"], SCHEMA, tmp_path / "out")
    assert (tmp_path / "out.part" / "precious").exists()


def test_a_full_disk(tmp_path, monkeypatch):
    write(tmp_path / "raw", [GOOD] * 9)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sections, "_bytes_of", full)
    assert "the disk of out is full" in refused(tmp_path, split="fraction:1,0,0")


def test_opening_what_is_no_prepared_data(tmp_path):
    with pytest.raises(ValueError, match="holds no prepared data"):
        EncodedData.open(tmp_path)
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        EncodedData.open(tmp_path)
    (tmp_path / "data.json").write_text('{"version": 99}')
    with pytest.raises(ValueError, match="format version 99"):
        EncodedData.open(tmp_path)
