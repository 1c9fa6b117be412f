//! Windows, tags, steps, statistics: a pure fold of samples and marks. Never reads a clock.
//!
//! # Time
//!
//! The fold lives in *active* time: `CLOCK_MONOTONIC` less what was suspended (Ctrl-Z). Lengths, means
//! and gaps are of active time; the start and end of a batch are real instants. Samples and marks wait
//! in a reorder buffer and are applied in the order of their stamps once they are older than
//! [`FoldSettings::slack`]; what arrives later than that counts as of the instant reached so far. At one
//! and the same instant marks come before samples: a span is `[start, end)`.
//!
//! # Gauges
//!
//! * The mean is time-weighted over the *covered* part of the span: trapezoid between consecutive values.
//! * The last value before the span is the value at its start; from there the trapezoid goes to the first
//!   value inside. A value read at the end of the span or a moment later (half a pace, at most the slack), which is
//!   the first one of the next, ends the last trapezoid, cut at the end (and is in no other statistic); without one the
//!   last value inside is held to the end of the span. A batch waits for it for as long as that moment.
//! * Two values more than 2.5 paces apart are not bridged: nothing between them is covered. A value is not
//!   held to the end of a span, or of its series, that lies more than 2.5 paces after it.
//! * A failed read ends the hold of the value before it; from there to the next value nothing is covered.
//! * Min and max are taken over every value that the mean stands on, the carried one included, so that
//!   `min <= mean <= max`. `last` is the last value known in the span.
//! * Where values were read but no time is covered (one read at the very end of a run), the mean is the
//!   plain mean of those reads.
//!
//! # Counters
//!
//! * Two totals at most 2.5 paces apart give one rate for the time between them, also when reads between
//!   them failed: a running total loses nothing by not being read. The mean is the sum of the increases,
//!   divided by the covered time; an increase across the edge of a span is shared out linearly in time, so
//!   that the spans of a run add up to its total. A batch waits for the totals that settle its edge.
//! * Min, max and last are those of the rates, `samples` counts the rates that ended in the span. A rate over less than
//!   half a pace (an extra read) goes into them together with the time before it: totals are counted in steps.
//! * A total that fell re-bases: it adds nothing and counts as missing. So does, without being counted as
//!   missing, the first total after a suspension, because the host's counters ran on meanwhile.
//!
//! # Both
//!
//! * A span without any read carries the held value (a counter: the rate of the enclosing interval, else
//!   the last known one) as mean, min, max and last, with 0 samples.
//! * `missing` counts failed reads, and reads that never came: nothing is counted up to 2.5 paces after a
//!   read, two at that instant, and one more each pace from there on.
//! * A [`Peak`](crate::model::reading::Reading::Peak) raises max and does nothing else.
//!
//! # Steps
//!
//! A step row covers `every_n_steps` steps in one opening of one tag and in one epoch, fewer where that ends. Its time
//! is that from the start of its first step to the end of its last, less that of tags beside the steps (evaluation,
//! checkpoint). A tag inside a step is part of it, and so is a tag that opens between the marks of every step. A tag around a
//! single step is that step's own. A step whose begin is not marked began with the mark before it. The row of the first
//! one begins with its epoch or its tag, whichever came last, but the time of that step is not known.
//!
//! # Epochs
//!
//! A row is of the epoch that began in its span, else of the one that ran when it began; of none where several began.
//! Windows go by what any client said, tags and steps by their own.
//!
//! # Scalars of the job
//!
//! They are points, not readings of something that has a value all the time: plain mean, `samples` is
//! their number; one that is not finite is `missing`. They stand in the periodic window (in a batch of their client's rank)
//! and in every open tag of their stack, by the time at which they were logged. One with a training step stands in the
//! row that covers the step. A complete row waits for such scalars until the next step has ended, its tag, or the run;
//! what comes later, and what is logged where steps are not marked, has a row of its own with its step's number. One
//! without a training step stands in the step row of its time.

mod accumulator;
mod durations;
mod fold;
mod open_tags;
mod piece;
mod points;
mod queue;
mod span;

pub(crate) use fold::{Collected, Fold, FoldSettings};

#[cfg(test)]
mod tests;
