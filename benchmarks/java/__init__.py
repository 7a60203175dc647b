"""Java programs that benchmarks run: programs.py compiles and starts them, sources/ has them."""
