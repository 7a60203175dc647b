"""What do uneven brokers cost training? `python -m benchmarks training_time`

Two ranks train on a dataset in Kafka whose brokers have limited links, and the time of an epoch is measured
beside where the dataset lies and how full the disks are. Three trainings (workloads.py): a small BERT on
CoLA, ResNet-18 on CIFAR-10, and ResNet-18 on CIFAR-10 enlarged to JPEGs of 640 x 480, the size of COCO's
images. Brokers start empty, or 60/20/20 % full. The dataset is laid by hand (even, 60/20/20, 100/0/0), or as
strategies lay it, among them evenload with weights from disks alone to the dataset alone (placing.py).

How much skew costs depends on how long reading takes beside the rest of a step. So links are given rates
(links.py) at which reading the dataset, spread evenly, takes 0.5, 1 and 2 times as long as an epoch on
unlimited links, which is measured before.

The datasets are small, for the time's sake, and are read as ones are that don't fit into memory: not held
whole, with few lanes and little read ahead (ranks.py), so that an epoch isn't on its way before it begins.

The front is command.py; report.py judges: training on what evenload's defaults lay may take at most 1.02
times as long as on the best layout from the same start.
"""
