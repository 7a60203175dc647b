"""What is measured, as metrics for Prometheus and OpenTelemetry.

The front is prometheus.py and otlp.py. Which metrics there are is said once, in instruments.py.

Read next: instruments.py.
"""
