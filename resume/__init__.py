"""A training that goes on where it stood: checkpoints, where they are kept, and who may go on with a run.

    hook.py                 what a loop of one's own calls      (hook_data.py, epoch_sampler.py: its data)
       |
    checkpointing.py        what an attempt does about them     (checkpoint_schedule.py: when)
       |
    beginning.py            with what an attempt begins
       |
    checkpoint_writer.py    writes checkpoints behind the loop
    kept_state.py           what is in them             (state_tensors.py, state_copy.py, spreading.py)
    fence.py                who may go on with a run
       |
    sharded_files.py        what is sharded, as files           (shard_index.py: which and where)
       |
    checkpoint.py           what a checkpoint is, and when it counts
    agreement.py            how ranks decide together           (peers.py)
       |
    attempts.py             what a run's attempts are called
       |
    storage.py              the run's folder, on any file system

It needs neither Kafka nor Ray, nor our reader. Imports go downwards only.

Read next: hook.py for its use; storage.py, checkpoint.py, beginning.py for how it is done.
"""
