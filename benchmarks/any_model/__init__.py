"""Every model of the CTR libraries, unmodified: plain PyTorch beside `hotrows.accelerate`.

python -m benchmarks.any_model [--library L ...] [--models M ...] [--optimizers O ...] [--quick]
"""
