//! Faults on purpose, to prove fail-over. Only with the feature `fault`.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::executor::ExecutorKind;
use crate::operation::{Arguments, BufferShape, LibraryId, Operation};

/// A way for a worker to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The worker kills itself with `SIGKILL`.
    Kill,
    /// The worker calls `abort`.
    Abort,
    /// The worker takes a segmentation violation.
    Segfault,
    /// The operation never ends; give it a deadline.
    Hang,
    /// The worker leaves with an exit code.
    Exit,
    /// A kernel writes to an address that is not mapped (CUDA error 700).
    IllegalAddress,
    /// A kernel executes `trap` (CUDA error 719).
    Trap,
    /// A kernel fails an assertion (CUDA error 710).
    Assert,
    /// A kernel reads a misaligned address (CUDA error 716).
    Misaligned,
    /// A kernel never ends; give it a deadline.
    EndlessKernel,
}

impl Fault {
    /// The faults that an executor knows.
    pub fn all(executor: ExecutorKind) -> &'static [Fault] {
        use Fault::*;
        match executor {
            ExecutorKind::Host => &[Kill, Abort, Segfault, Hang, Exit],
            ExecutorKind::Cuda => {
                &[IllegalAddress, Trap, Assert, Misaligned, EndlessKernel, Kill, Abort, Segfault, Hang, Exit]
            }
        }
    }
}

/// The operation that strikes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FaultOp {
    /// What happens.
    pub fault: Fault,
}

impl FaultOp {
    pub(crate) const CODE: u16 = 2;
}

impl Operation for FaultOp {
    type Output = ();
    const NAME: &'static str = "core.fault";
    const LIBRARY: LibraryId = LibraryId::CORE;
    const CODE: u16 = FaultOp::CODE;

    fn arguments(&self) -> Arguments {
        Arguments::new()
    }

    fn check(&self, _buffers: &[BufferShape]) -> Result<()> {
        Ok(())
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Ends (or hangs) this process. Returns for the faults of kernels, which are the GPU's to make.
pub(crate) fn strike(fault: Fault) {
    match fault {
        Fault::Kill => send(rustix::process::Signal::KILL),
        Fault::Abort => std::process::abort(),
        Fault::Segfault => send(rustix::process::Signal::SEGV),
        Fault::Hang => loop {
            std::thread::sleep(std::time::Duration::from_secs(3600));
        },
        Fault::Exit => std::process::exit(3),
        _ => {}
    }
}

/// Sends this process a signal until it ends: Rust's own handler takes the first `SIGSEGV`.
fn send(signal: rustix::process::Signal) -> ! {
    loop {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
