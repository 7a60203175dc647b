# A Ray node whose jobs can train: docker build -f deploy/docker/trainer.Dockerfile .
# Ray's image, of the Ray that constraints.txt pins; its user is `ray`, not root.
FROM rayproject/ray:2.60.0-py311
COPY --chown=ray:users . /home/ray/evenload
RUN pip install --no-cache-dir --constraint /home/ray/evenload/constraints.txt '/home/ray/evenload[train]'
