"""LightGBM from a CSV to the scores of its last tenth: `boosted_log.py FILE.csv THREADS`; prints JSON.

The first column is the label, columns whose names begin with C are categories. The first 80 % of the rows
train, the next 10 % stop training early; settings are the defaults.
"""

import json
import sys

import lightgbm
import pandas as pd
from sklearn.metrics import log_loss, roc_auc_score


def main() -> None:
    file, threads = sys.argv[1], int(sys.argv[2])
    label, *names = pd.read_csv(file, nrows=0).columns
    log = pd.read_csv(file, dtype={name: "category" for name in names if name.startswith("C")})
    y, x = log.pop(label), log
    first, second = len(x) * 8 // 10, len(x) * 9 // 10
    model = lightgbm.LGBMClassifier(n_jobs=threads, verbose=-1)
    stop = lightgbm.early_stopping(30, verbose=False)
    model.fit(x[:first], y[:first], eval_set=[(x[first:second], y[first:second])], callbacks=[stop])
    scores = model.predict_proba(x[second:])[:, 1]
    auc, loss = roc_auc_score(y[second:], scores), log_loss(y[second:], scores)
    print(json.dumps({"auc": round(auc, 6), "log_loss": round(loss, 6)}))


main()
