//! The worker: the process (or thread) that the executor lives in, and how the front talks to it.
//!
//! A program becomes a worker by calling [`init`] first thing in `main`: when it was started as
//! one, the call never returns.

mod channel;
#[cfg(feature = "fault")]
pub mod fault;
mod link;
mod page;
mod ring;
mod run;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use channel::{FromWorker, Received, ToWorker};
pub(crate) use link::{Answer, Launch, Link, exit_error};
pub(crate) use page::{MAX_RECORD_WORDS, Page, REHEARSAL_SLOT, REPLY_SLOTS};
pub(crate) use ring::{Consumer, Producer, PushError};
pub(crate) use wire::{FrameHeader, Mail, decode_mail, encode_frame};

/// Set in the environment of a process that is started as a worker.
pub(crate) const WORKER_ENV: &str = "ATOMR_CUDA_WORKER";

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Becomes the worker when this process was started as one, and does not return then.
///
/// Call it first thing in `main`, before threads and runtimes: the device starts its workers by
/// starting this same executable again. A program that cannot call it names a worker executable in
/// its configuration ([`DeviceConfig::worker_executable`](crate::DeviceConfig::worker_executable)),
/// such as the facade's `atomr-cuda-worker`, which knows the libraries that it was built with.
pub fn init() {
    INITIALISED.store(true, Ordering::Release);
    if std::env::var_os(WORKER_ENV).is_some() {
        run::process_main();
    }
}

/// Whether this process may start itself as a worker.
pub(crate) fn initialised() -> bool {
    INITIALISED.load(Ordering::Acquire)
}

#[cfg(feature = "preinit")]
mod preinit;
