"""A bundle scores raw rows as the run that it was exported from predicts them."""

import pytest

from hotrows import load_run, models
from hotrows.serving import Scorer
from hotrows.serving.export.whole import export
from tests.support.bundles import expected_logits, furthest, raw_rows, trained

pytestmark = [
    pytest.mark.usefixtures("one_thread", "no_pictures"),
    pytest.mark.filterwarnings("ignore:values differ from those"),
]

ROWS = raw_rows(600)


LONG = ("can", "dien", "tbsm")  # to export; din and mmoe stand for them without --all
MODELS = [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in sorted(models.BY_NAME)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.usefixtures("one_trace")
def test_every_model_scores_as_it_predicts_in_every_format(clicks_encoded, tmp_path, model, request):
    bundles = {}
    if model == "din":  # whose run and bundle other tests have
        run, bundles["onnx"] = map(request.getfixturevalue, ("din_run", "din_bundle"))
    else:
        run = trained(clicks_encoded, tmp_path / "run", model)
    predictor = load_run(run)
    expected = expected_logits(predictor, ROWS)
    assert expected.std() > 0.01
    for kind in ("onnx", "pt2"):
        bundle = bundles.get(kind) or export(run, tmp_path / kind, format=kind)
        scorer = Scorer(bundle, trust=True)
        assert furthest(scorer.logits(ROWS), expected) <= 1e-6, kind
        assert scorer.score(ROWS) == pytest.approx(predictor.predict(ROWS), rel=1e-5, abs=1e-7)
    predictor.embedding.close()


def test_a_program_names_no_file_of_the_machine_that_made_it(din_bundle):
    """Its nodes had the traces of the export: four fifths of the file, and paths that left with it."""
    content = (din_bundle / "model.onnx").read_bytes()
    assert b'File "' not in content and len(content) < 40_000
