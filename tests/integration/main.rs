//! The one integration binary: the real gpurun, real jobs, real readers.

mod architecture;
mod cli;
mod collector;
mod control;
mod docs;
mod fake_driver;
mod faults;
mod files;
mod lease;
mod main_job;
mod python;
mod readers;
mod sampling;
mod selection;
mod support;
mod transparency;
mod truth;
