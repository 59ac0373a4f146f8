//! What a library keeps for each stream: a handle with its workspace.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;
use crate::executor::Step;

use super::CudaCall;

/// One `T` for each stream, made on a side thread when a stream first needs it.
pub struct PerStream<T> {
    made: Arc<Mutex<Vec<(usize, T)>>>,
    make: fn() -> Result<T>,
}

impl<T: Send + 'static> PerStream<T> {
    /// `first` serves the first stream, so that the first operation need not wait; `make` runs with
    /// the device's context current.
    pub fn new(first: T, make: fn() -> Result<T>) -> Self {
        PerStream { made: Arc::new(Mutex::new(vec![(0, first)])), make }
    }

    /// Runs `work` with the call's stream's `T`, or has it made first.
    pub fn with(
        &self,
        call: &mut CudaCall<'_>,
        work: impl FnOnce(&mut T, &mut CudaCall<'_>) -> Result<Step>,
    ) -> Result<Step> {
        let stream = call.stream_index();
        if let Some((_, value)) = self.made.lock().iter_mut().find(|(of, _)| *of == stream) {
            return work(value, call);
        }
        let (made, make) = (self.made.clone(), self.make);
        Ok(call.later(move || {
            let value = make()?;
            made.lock().push((stream, value));
            Ok(())
        }))
    }
}
