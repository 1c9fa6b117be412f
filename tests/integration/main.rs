//! The one integration binary: the real gpurun, real jobs, real readers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod architecture;
mod believable;
mod cause;
mod cli;
mod collector;
mod cpu_limits;
mod device_facts;
mod docs;
mod fake_driver;
mod faults;
mod files;
mod fuzz;
mod gpm;
mod gpu_truth;
mod hardening;
mod isolation;
mod lease;
mod logged;
mod main_job;
mod nvitop;
mod powercap;
mod python;
mod readers;
mod record;
mod report;
mod selection;
mod slurm;
mod smoke;
mod stdout;
mod support;
mod transparency;
mod truth;
mod when_killed;
mod words;
