//! Completion: tickets, and the futures that wait for them.
//!
//! Each stream has one counter in shared memory that rises as its operations finish. A waiter first
//! looks at the counter itself (for as long as the strategy allows), then leaves its waker to the
//! reactor. Nothing here knows what an operation is.

mod pending;
mod strategy;
mod ticket;

pub use pending::Pending;
pub use strategy::{CompletionStrategy, Latency};

pub(crate) use ticket::{Outcome, Progress, Ticket};
