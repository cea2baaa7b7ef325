"""The public names of the library by module; tests/test_public_api.py and the examples hold them."""

PUBLIC = {
    "hotrows": """
        FTRL SGD Adagrad LazyAdam Batch Caching Callback Classifier Constant Cross Dense DenseAdam
        DenseAdamW DenseSGD Dynamic DynamicEmbedding Embedding Label Loader Normal Publisher
        Regressor RowWiseAdagrad Schema Sequence Sparse Table Time TrainConfig Trainer Uniform Vectors
        accelerate explain load_run lookahead prefetch prepare restore
    """,
    "hotrows.data": """
        Draft EncodedData Encoder Part describe draft_schema open_parquet prepare_schema write_encoded
    """,
    "hotrows.data.datasets": "BY_NAME DataSet download prepare",
    "hotrows.data.datasets.schemas": "with_min_count",
    "hotrows.data.datasets.synthetic": "synth_criteo",
    "hotrows.models": "BY_NAME CAN DCNv2 DIEN DIN DLRM DNN DeepFM FM LR MMoE Model TBSM WideDeep",
    "hotrows.models.tables": "cross_tables linear_tables tables_of vector_tables",
    "hotrows.models.nn": """
        CrossNetwork DotInteraction ExpertMixture FactorizationMachine GRU MLP TargetAttention last_of
    """,
    "hotrows.train.metrics": "Metrics auc compute_metrics grouped_auc",
    "hotrows.train": "Interrupted Predictor Progress Result",
    "hotrows.data.streams": "Alarm EventSource EventStream StreamConfig open_source table_events",
    "hotrows.serving": "Limits Scorer application",
    "hotrows.serving.export.whole": "export",
    "hotrows.engine.checkpoint": "State Writer load merge save",
    "hotrows.engine.distributed.process_group": "start",
    "hotrows.engine.distributed.dense_gradients": "SharedGradients",
    "hotrows.engine.planning.policy": "Frequency Hot LRU Lookahead",
    "hotrows.tools.trackers": "MLflow Tracker WandB",
    "hotrows.tools.tuning.tune": "tune",
    "hotrows.tools.tuning.cache_simulation": "simulate",
    "hotrows.tools.tuning.advice": "advise",
    "hotrows.tools.tuning.pictures": "draw_curves",
}
NAMES = [f"{module}.{name}" for module, names in PUBLIC.items() for name in names.split()]
