//! Choosing GPUs from snapshots, `CUDA_VISIBLE_DEVICES`, leases, waiting. Never reads NVML itself.
