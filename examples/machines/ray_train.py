"""Ranks as workers of Ray Train: python ray_train.py s3://bucket/enc s3://bucket/run

Ray (`pip install hotrows[ray,remote]`) starts the workers, connects them and starts them again after a
failure. Each resumes from the bucket.
"""

import sys

import hotrows


def train_one(places):
    """One worker: the ranks are the process group that Ray has made."""
    from hotrows.engine.distributed import process_group

    config = hotrows.TrainConfig(checkpoint_every=1000, full_every=10, **places.get("settings", {}))
    ranks = process_group.start()
    trainer = hotrows.Trainer(places["data"], config, places["run"], resume=True, ranks=ranks)
    return trainer.fit()


def main(data, run, cpus=8, **settings):
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        train_one,
        train_loop_config={"data": data, "run": run, "settings": settings},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": cpus}),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1)),
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
