//! gpurun
fn main() {}
