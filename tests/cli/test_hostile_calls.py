"""Hostile calls of the command line: each ends with one clear line and the right exit code, no traceback.

The tables hold a call with values in place of `@`, separated by spaces, and a piece of the line.
"""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from hotrows import cli
from tests.cli import hostile

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")

HUGE = 2**70
USAGE, FAILED = 2, 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, before = tmp_path_factory.mktemp("hostile"), Path.cwd()

    def run(line):
        try:
            cli.main(line.split())
        except SystemExit as left:
            assert not left.code, line

    os.chdir(folder)
    try:
        hostile.make(folder, run)
    finally:
        os.chdir(before)
    return folder


def calls(*table):
    """The calls of a table, one for each value, as parameters: arguments and the piece of the line."""
    cases = []
    for line, values, piece in table:
        for value in values.split(" ") if values else [None]:
            words = [str(HUGE) if word == "HUGE" else word for word in shlex.split(line)]
            if value is not None:
                value = value.replace("HUGE", str(HUGE)).replace("EMPTY", "")
                words = [
                    word.replace("@", value) if "@" in word and word != "@" else word for word in words
                ]
                words = [value if word == "@" else word for word in words]
            cases.append(pytest.param(words, piece, id=" ".join(words)[-60:] or "nothing"))
    return pytest.mark.parametrize(("arguments", "piece"), cases)


def refused(hotrows, arguments, code):
    """The line with which a call is refused."""
    run = hotrows(*arguments)
    assert run.code == code, run.err
    assert "Traceback" not in run.err
    lines = run.err.strip().splitlines()
    if code == FAILED:
        told = [line for line in lines if line.startswith("hotrows: ")]
        assert told == lines[-1:], run.err
    else:
        assert lines[-1].startswith("Error: "), run.err
    assert len(lines[-1]) < 1000
    return lines[-1]


TRAIN = "train enc --run r --steps 1 --linear-paths plain --model lr"
CACHED = f"{TRAIN} --fast-memory 1MiB"
DEEP = "train enc --run r --steps 1 --linear-paths plain --model deepfm"
PREPARE = "prepare raw.csv --schema s.json --out out"
SIMULATE = "simulate enc --model lr"
SCALE = "plan criteo-1tb --machine h100 --ranks"


@calls(
    (
        f"{TRAIN} --lr @",
        "-1 inf nan 1e400 -inf -1e-9",
        "adagrad's lr must be a finite number of at least 0",
    ),
    (f"{TRAIN} --lr @", "x EMPTY", "is not a valid float"),
    (f"{TRAIN} --row-option @", "lr=-1 lr=NaN lr=Infinity eps=-1 weight_decay=-1", "of at least 0, not"),
    (f"{TRAIN} --row-option @", "lr=x lr=true lr=null lr=[1] lr={}", "adagrad's lr must be a number"),
    (f"{TRAIN} --row-option @", "rate=1 =", "adagrad has no"),
    (f"{TRAIN} --row-option @", "lr EMPTY", "must be NAME=VALUE"),
    (
        f"{TRAIN} --optimizer adam --row-option @",
        "beta1=1 beta2=2 beta1=-1 beta2=NaN",
        "from 0 to below 1",
    ),
    (f"{TRAIN} --optimizer adam --row-option @", "per_row_step=3", "must be true or false, not 3"),
    (f"{TRAIN} --optimizer ftrl --row-option @", "l1=-1 l2=NaN beta=-1", "of at least 0"),
    (f"{TRAIN} --dense-lr @", "-1 0 nan -0.0", "dense_lr must be above 0, not"),
    (f"{TRAIN} --dense-lr @", "inf 1e400", "dense_lr must be a finite number, not inf"),
    (f"{TRAIN} --clip-norm @", "-1 0 nan", "clip_norm must be above 0"),
    (f"{TRAIN} --clip-norm @", "inf", "clip_norm must be a finite number"),
    (f"{TRAIN} --decay-factor @", "-1 0 nan", "decay_factor must be above 0"),
    (f"{TRAIN} --timeout @", "-1 0 nan inf HUGE", "timeout must be a"),
    (f"{TRAIN} --epochs @", "-1 0 HUGE", "epochs must be at"),
    (f"{TRAIN} --steps @", "-1 0", "steps must be at least 1, not"),
    (f"{TRAIN} --batch-size @", "-1 0 HUGE 9223372036854775807", "batch_size must be at"),
    (f"{TRAIN} --batch-size @", "x 1.5 EMPTY", "is not a valid integer"),
    (f"{TRAIN} --seed @", "HUGE", "seed must be a whole number of at most 64 bits"),
    (f"{TRAIN} --evaluate-every @", "-1 0", "evaluate_every must be at least 1"),
    (f"{TRAIN} --evaluate-every @", "HUGE", "evaluate_every must be a whole number of at most 64 bits"),
    (f"{TRAIN} --checkpoint-every @", "-1 0", "checkpoint_every must be at least 1"),
    (f"{TRAIN} --keep-last @", "-1 0", "keep_last must be at least 1"),
    (f"{TRAIN} --full-every @", "-1 0", "full_every must be at least 1"),
    (f"{TRAIN} --warmup-steps @", "-1", "warmup_steps must be at least 0"),
    (f"{TRAIN} --decay-patience @", "-1 0", "decay_patience must be at least 1"),
    (f"{TRAIN} --stop-patience @", "-1 0", "stop_patience must be at least 1"),
    (f"{TRAIN} --micro-batches @", "-1 HUGE", "micro_batches must be at"),
    (f"{TRAIN} --pack-parts @", "-1 HUGE", "pack_parts must be at"),
    (f"{TRAIN} --planning-threads @", "-1 0 HUGE", "planning_threads must be at"),
    (f"{TRAIN} --streams @", "-1 0 HUGE", "streams must be at"),
    (f"{CACHED} --in-flight @", "-1 0 HUGE", "in_flight must be at"),
    (f"{TRAIN} --fast-memory @", "0", "fast_memory must be at least 1"),
    (f"{TRAIN} --fast-memory @", "-1 x 1XB nan EMPTY 1e9", "a size must be a number of bytes"),
    (f"{TRAIN} --fast-memory @", "HUGE 9999999999999999999GiB", "a size must be below 8388608 TiB"),
    (f"{CACHED} --store @", "file: file disk EMPTY", "store must be 'memory' or 'file:PATH'"),
    (
        f"{CACHED} --policy @",
        "x EMPTY lookahead:x lookahead:HUGE lookahead:-1 lru:3 frequency:0,0 frequency:HUGE,1",
        "policy",
    ),
    (f"{TRAIN} --option @", "EMPTY dim", "must be NAME=VALUE"),
    (f"{TRAIN} --label-weight @", "label=0 label=-1 label=NaN label=Infinity label=x", "must be above 0"),
    (f"{TRAIN} --sharding @", "x EMPTY", "is not one of"),
    (f"{TRAIN} --run @", "file EMPTY", "'--run'"),
    (f"{TRAIN} --trace @", "folder EMPTY", "'--trace'"),
    (f"{TRAIN} --config @", "folder EMPTY", "'--config'"),
    ("train enc --model @", "x EMPTY", "is none of lr, fm, dnn"),
    ("train enc --resume", "", "--resume needs the run to go on with: --run FOLDER"),
    ("train enc enc", "", "expected one folder of prepared data, not 2 arguments"),
    ("train enc --test enc", "", "--validation and --test are of Parquet files"),
    (f"{SIMULATE} --samples-per-second @", "0 -1 nan inf", "it must be a finite number above 0"),
    (f"{SIMULATE} --reads-per-second @", "0 -1 nan inf", "it must be a finite number above 0"),
    (f"{SIMULATE} --bytes-per-second @", "0 nan", "it must be a finite number above 0"),
    (f"{SIMULATE} --writes-per-second @", "0 -1", "it must be a finite number above 0"),
    (f"{SIMULATE} --batches @", "0 -1 HUGE x", "--batches"),
    (f"{SIMULATE} --batch-size @", "0 -1 HUGE", "batch_size must be at"),
    (f"{SIMULATE} --in-flight @", "0 -1 HUGE", "in_flight must be at"),
    (f"{SIMULATE} --fast-memory @", "0", "fast_memory must be at least 1"),
    (f"{SCALE} @", "0 -1 x EMPTY 1,,2 HUGE 1,HUGE ²", "must be numbers from 1 to 1000000"),
    (f"{SCALE} 1 --micro-batches @", "-1 HUGE", "micro_batches must be at"),
    (f"{SCALE} 1 --wire-bytes @", "3", "is not one of '2', '4'"),
    ("profile enc --fast-memory @", "0 -1 HUGE x", "--fast-memory"),
    ("profile enc --fast-memory 1MiB --seed @", "HUGE x", "--seed"),
    ("synth criteo --out out --rows @", "0 -1 HUGE x", "--rows"),
    ("synth criteo --rows 1 --out out --seed @", "HUGE x", "--seed"),
    ("synth criteo --rows 1 --out out --cardinality-scale @", "0 -1 nan inf x", "--cardinality-scale"),
    ("synth @ --rows 1 --out out", "x EMPTY", "is not one of 'criteo', 'product'"),
    ("synth product --rows 1 --out out --fields @", "0 -1 HUGE x", "--fields"),
    ("synth criteo --rows 1 --out out --fields @", "26", "--fields is of synth product"),
    ("synth product --rows 1 --out out --cardinality-scale @", "2", "is of synth criteo"),
    (f"{PREPARE} --threads @", "0 -1 HUGE 100000 x", "--threads"),
    (f"{PREPARE} --min-count @", "0 -1 HUGE x", "--min-count"),
    (f"{PREPARE} --seed @", "HUGE x", "--seed"),
    (f"{PREPARE} --memory @", "-1 HUGE x", "a size must be"),
    ("prepare raw.csv --schema s.json --out @", "file EMPTY", "--out"),
    ("prepare raw.csv --out out", "", "say what the columns are: --schema NAME or FILE"),
    ("predict run raw.csv --out @", "folder EMPTY", "--out"),
    ("predict run", "", "Missing argument 'RAW...'"),
    ("eval run --part @", "x EMPTY", "is not one of 'train', 'validation', 'test'"),
    ("eval @", "file EMPTY", "'RUN'"),
    ("describe enc --dim @", "0 -1 HUGE", "--dim"),
    ("describe @", "file EMPTY raw.csv", "'DATA'"),
    ("export run --out @", "EMPTY", "--out"),
    ("checkpoint inspect @", "file EMPTY", "'PLACE'"),
    ("tune enc --seconds @", "0 -1 nan inf x", "--seconds"),
    ("tune enc --config @", "folder EMPTY", "--config"),
    ("tune enc --lr @", "-1", "lr must be a finite number of at least 0"),
    ("data @", "x EMPTY", "is none of adult"),
    ("data movielens_1m --download", "", "--download needs the folder"),
    ("doctor --batch-size @", "0 -1 HUGE", "--batch-size"),
    ("@", "x --x", "No such"),
)
def test_wrong_usage_is_refused_before_anything_is_done(hotrows, folder, monkeypatch, arguments, piece):
    before = sorted(os.listdir(folder))
    monkeypatch.chdir(folder)
    assert piece in refused(hotrows, arguments, USAGE)
    assert sorted(os.listdir(folder)) == before


@calls(
    (f"{DEEP} --option @", "dim=0 dim=-1", "needs at least one row and one dimension"),
    (f"{DEEP} --option @", "dim=x dim=1.5 dim=true dim=null dim=[", "DeepFM's option dim must be int"),
    (f"{DEEP} --option @", "dim=HUGE hidden=[HUGE]", "DeepFM's option"),
    (f"{DEEP} --option @", "dim=1000000000000000000", "has more weights than any memory"),
    (f"{DEEP} --option @", "hidden=[0] hidden=[-1]", "needs at least two positive sizes"),
    (f"{DEEP} --option @", "hidden=[100000000000,100000000]", "memory"),
    (f"{TRAIN} --device @", "x EMPTY cuda:99", "device must be cpu or cuda"),
    (f"{DEEP} --option @", "hidden=x hidden=3", "DeepFM's option hidden must be"),
    (f"{DEEP} --option @", "nothing=1 schema=3 self=1 =", "DeepFM has no option"),
    (f"{DEEP} --option @", "dropout=2 dropout=-1 dropout=NaN", "dropout"),
    (f"{TRAIN} --label @", "x", "label must be one of label, not 'x'"),
    (f"{TRAIN} --label-weight @", "x=1", "label_weights are of the labels that the model learns (label)"),
    (f"{TRAIN} --config @", "missing.json", "there is no missing.json"),
    (f"{TRAIN} --config @", "file deep.json nested.json bytes.json", "cannot be read"),
    (f"{TRAIN} --config @", "null.json list.json", "expected a JSON object"),
    (f"{TRAIN} --config @", "digits.json", "cannot be read"),
    (f"{TRAIN} --config @", "unknown.json", "a training configuration has no field 'batchsize'"),
    (f"{TRAIN} --config @", "typed.json", "batch_size of a training configuration must be"),
    (f"{TRAIN} --config @", "optimizer.json", "adagrad has no 'rate'"),
    (f"{TRAIN} --config @", "number.json", "row_optimizer of a training configuration must be"),
    (f"{TRAIN} --from @", "folder enc", "is not a run folder: it has no config.json"),
    (f"{TRAIN} --from @", "missing", "missing does not exist"),
    ("train @ --run r", "EMPTY missing folder empty run", "prepare"),
    ("train enc --run @", "enc run", "exists already: resume it"),
    ("train enc --run @", "/proc/x", "/proc/x: "),
    ("train enc --run @ --resume", "missing folder", "there is no run to resume in"),
    ("train raw.csv --schema s.json --run r", "", "feature 'user' has no `rows` yet"),
    ("train raw.csv --schema rows.json --run r", "", "raw.csv"),
    ("train no*.parquet --schema rows.json --run r", "", "no file matches "),
    ("train ones --run run --resume", "", "was begun"),
    ("eval @", "folder empty enc", "is not a run folder: it has no config.json"),
    ("eval @", "missing", "missing does not exist"),
    ("eval run --data @", "folder", "holds no prepared data"),
    ("eval run --data @", "missing", "missing does not exist"),
    ("eval run --data ones", "", "is not what run was trained on"),
    ("predict run @", "missing EMPTY", "does not exist"),
    ("predict run @", "empty", "holds no files"),
    ("predict run @", "empty.csv /proc/self/mem", "is empty"),
    ("predict run @", "header.csv", "has no lines after its header"),
    ("predict run @", "file folder", "line 1"),
    ("predict run @", "enc", "enc is prepared data, not raw rows"),
    ("predict run @", "s.json", "lacks the columns"),
    ("predict run @", "/dev/null /dev/zero", "is no regular file"),
    ("predict run @", "none://x ://", "://"),
    ("predict run raw.csv --out @", "missing/x /proc/x", "No such file or directory; check the path"),
    ("predict @ raw.csv", "enc folder", "is not a run folder"),
    ("predict @ raw.csv", "missing", "missing does not exist"),
    ("synth product --rows 1 --out out --fields @", "3 5000", "num_fields from 4 to 4,096"),
    ("export run --out @", "folder run file", "exists and is no empty folder"),
    ("export run --out @", "/proc/x", "/proc/x: No such file or directory"),
    ("export @ --out out", "enc", "is not a run folder"),
    ("export @ --out out", "missing", "missing does not exist"),
    ("checkpoint inspect @", "missing folder empty enc run/checkpoints", "is no checkpoint"),
    ("checkpoint merge @ out", "missing folder enc", "is no checkpoint"),
    ("checkpoint merge run @", "folder run", "exists and is no empty folder"),
    ("describe @", "folder empty", "holds no prepared data"),
    ("describe @", "missing", "missing does not exist"),
    ("describe run", "", "run is a run; name the folder of prepared data"),
    (
        "profile enc --fast-memory 1MiB --sample @",
        "0 -1 2 nan inf",
        "sample must be above 0 and at most 0.5",
    ),
    (
        "profile enc --fast-memory 1MiB --confidence @",
        "0 1 -1 nan inf",
        "confidence must be between 0 and 1",
    ),
    ("profile enc --fast-memory 1MiB --option x=1", "", "DeepFM has no option 'x'"),
    ("regroup enc --fast-memory 1KiB --out folder", "", "exists"),
    ("simulate @", "folder", "holds no prepared data"),
    ("simulate @", "missing", "missing does not exist"),
    ("synth criteo --rows 1 --out /proc/x", "", "/proc/x: No such file or directory"),
    (
        "synth criteo --rows 1 --out out --cardinality-scale @",
        "1e300 1e7",
        "cardinality_scale above 0 and at most",
    ),
    (f"{PREPARE} --split @", "x fraction fraction: fraction:-1,1,1 fraction:nan,0,1", "split must be"),
    (f"{PREPARE} --split @", "position:2 stratified:0,0,1 fraction:1/0,0,0", "split must be"),
    (f"{PREPARE} --split @", "fraction:1e999999999,0,0 position:1e-9999999 time:2020", "split must be"),
    (f"{PREPARE} --split @", "time:0.8,0.1,0.1", "needs to know the time"),
    (f"{PREPARE} --split fraction:{'9' * 6000}", "", "split must be"),
    (f"{PREPARE} --split @", "fraction:1,1,1 fraction:0.8,0.1 time:80,10,10", "which sum to 1, found"),
    (f"{PREPARE} --memory 1", "", "give more memory"),
    (f"{PREPARE} --like @", "folder", "holds no prepared data"),
    (f"{PREPARE} --like @", "missing", "missing does not exist"),
    (f"{PREPARE} --extend @", "folder", "holds no prepared data"),
    (f"{PREPARE} --extend @", "missing", "missing does not exist"),
    (
        "prepare raw.csv --schema more.json --like enc --out out",
        "",
        "the schema differs from that of enc",
    ),
    (f"{PREPARE} --validation @", "missing EMPTY", "does not exist"),
    ("prepare raw.csv --out out --schema @", "missing.json missing.py", "does not exist"),
    ("prepare raw.csv --out out --schema @", "x file folder EMPTY", "is unknown: give one of"),
    ("prepare raw.csv --out out --schema @", "deep.json nested.json", "nested too deeply"),
    ("prepare raw.csv --out out --schema @", "null.json list.json", "expected a JSON object"),
    ("prepare raw.csv --out out --schema @", "bytes.json digits.json", "cannot be read"),
    ("prepare raw.csv --out out --schema s_none.py", "", "must define `schema`"),
    ("prepare raw.csv --out out --schema s_syntax.py", "", "s_syntax.py line 1: SyntaxError: "),
    ("prepare raw.csv --out out --schema s_raises.py", "", "s_raises.py line 1: ZeroDivisionError: "),
    (
        "prepare raw.csv --out out --schema s_bad.py",
        "",
        "s_bad.py line 2: feature 'price': transform must",
    ),
    ("prepare raw.csv --out out --schema criteo", "", "line 1"),
    ("prepare @ --schema s.json --out out", "missing EMPTY", "does not exist"),
    ("prepare @ --schema s.json --out out", "empty.csv header.csv", "raw file"),
    ("prepare raw.csv --schema s.json --out @", "folder enc run", "exists and is no empty folder"),
    ("prepare raw.csv --schema s.json --out @", "/proc/x", "/proc/x.part: No such file or directory"),
    ("data movielens_1m --raw @ --out out", "empty folder", "must hold ratings.dat"),
    ("data movielens_1m --raw missing --out out", "", "expected a folder that holds"),
    ("data adult --out out --split x", "", "split must be"),
    ("data avazu --download --raw out", "", "cannot be downloaded without an account"),
    ("tune enc --may-change @", "x epochs model", "may"),
    ("tune @ --seconds 0.1", "folder", "holds no prepared data"),
    ("tune @ --seconds 0.1", "missing", "missing does not exist"),
)
def test_what_cannot_be_done_is_said_in_one_line(hotrows, folder, monkeypatch, arguments, piece):
    monkeypatch.chdir(folder)
    shutil.rmtree("r", ignore_errors=True)
    before = sorted(os.listdir(folder))
    assert piece in refused(hotrows, arguments, FAILED)
    assert sorted(set(os.listdir(folder)) - {"r"}) == before


@pytest.mark.parametrize(
    ("file", "piece"),
    [
        ("plain.py", "plain.py has no class 'M' made of hotrows.models.Model"),
        ("missing.py", "there is no file"),
        ("folder.py", "there is no file"),
        ("imports.py", "cannot be imported: No module named 'nothing_like_it'"),
        ("a.b.c", "cannot be imported: No module named 'a'"),
        ("..", "must be file.py:Class or module:Class"),
        (".x", "must be file.py:Class or module:Class"),
        ("", "must be file.py:Class or module:Class"),
        ("syntax.py", "syntax.py line 1: SyntaxError: "),
        ("raises.py", "raises.py line 1: RuntimeError: of its own"),
        ("init.py", "init.py line 9: KeyError: 'x'"),
        ("feature.py", "nobody"),
        ("rows.py", "rows.py line 10: table 'user' needs at least one row"),
        ("text.py", "text.py line 10: table 'user' needs"),
        ("forward.py", "forward.py line 14: IndexError: of its own"),
        ("shape.py", "shape.py line 14: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("logits.py", "M must return logits [32] for labels label, not [32, 1]"),
        ("none.py", "a model must return logits, or (logits, loss), not NoneType"),
        ("words.py", "a model must return logits, or (logits, loss), not str"),
        ("diverges.py", "training diverged: the loss is nan at step 1; lower the learning rates"),
    ],
)
def test_a_model_with_errors_is_named_with_its_line(hotrows, folder, monkeypatch, file, piece):
    monkeypatch.chdir(folder)
    shutil.rmtree("r", ignore_errors=True)
    train = f"train enc --run r --batch-size 32 --linear-paths plain --model {file}:M"
    assert piece in refused(hotrows, shlex.split(train), FAILED)


def test_debug_shows_the_traceback(hotrows, folder, monkeypatch):
    monkeypatch.chdir(folder)
    shutil.rmtree("r", ignore_errors=True)
    with pytest.raises(RuntimeError, match="of its own"):
        cli.main(["--debug", "train", "enc", "--model", "raises.py:M", "--run", "r"])


DIVERGES = "train enc --run r --batch-size 32 --linear-paths plain"


@pytest.mark.parametrize(
    "call",
    [
        f"{DIVERGES} --model lr --lr 1e38 --dense-lr 1e38",
        f"{DIVERGES} --model deepfm --lr 1e38 --option dim=4 --option hidden=[8]",
        f"{DIVERGES} --model dlrm --dense-lr 1e38 --steps 1 --option dim=4 --option bottom=[4]",
    ],
)
def test_training_that_diverges_says_so_and_what_to_do(hotrows, folder, monkeypatch, call):
    """Metrics of NaN ended in "Out of range float values are not JSON compliant", or in a TypeError of
    the picture."""
    monkeypatch.chdir(folder)
    shutil.rmtree("r", ignore_errors=True)
    line = refused(hotrows, shlex.split(call), FAILED)
    assert "training diverged" in line
    assert "lower the learning rates" in line


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("ones", "the label 'label' is 1 in the whole training part"),
        ("early", "the label 'label' is 0 in the whole validation part: it has no AUC there"),
    ],
)
def test_labels_of_one_class_are_noticed(hotrows, folder, monkeypatch, data, said):
    """AUC was nan, without a word."""
    monkeypatch.chdir(folder)
    shutil.rmtree("r", ignore_errors=True)
    run = hotrows(
        "train", data, "--model", "lr", "--batch-size", 32, "--linear-paths", "plain", "--run", "r"
    )
    assert run.code == 0
    assert said in " ".join(run.err.split())
