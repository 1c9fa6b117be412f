//! gpurun
