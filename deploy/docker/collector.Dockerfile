# `evenload collector` and `evenload metrics`: docker build -f deploy/docker/collector.Dockerfile .
FROM python:3.11.13-slim-bookworm
COPY . /evenload
RUN pip install --no-cache-dir --constraint /evenload/constraints.txt '/evenload[collector]'
USER nobody
ENTRYPOINT ["evenload"]
CMD ["--help"]
