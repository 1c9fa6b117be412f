//! A scripted `libnvidia-ml.so.1` for the tests.
