//! What becomes of the queues when a worker comes, goes, or is late, and when the device ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::GpuError;
use crate::worker::Link;

use super::attached::{Attached, Wakers};
use super::config::Isolation;
use super::front::{DevicePhase, Front, wake_all};

/// What a deadline asks for.
pub(crate) enum Overdue {
    Nothing,
    /// An operation with the worker is past its deadline: the worker has to go.
    Worker,
}

impl Front {
    /// A new worker takes over: the queue goes on.
    pub fn attach(&self, link: Arc<Link>, generation: u64) {
        let survives = self.config.isolation == Isolation::Process;
        *self.info.lock() = Some(link.info.clone());
        let mut queues = self.queues.lock();
        if queues.phase == DevicePhase::ShutDown {
            return;
        }
        self.memory.begin_generation(generation, survives || generation == 1);
        queues.attached = Some(Attached::new(link, self.config.streams));
        queues.phase = DevicePhase::Ready;
        let mut wakers = Wakers::new();
        let pumped = self.pump(&mut queues, &mut wakers);
        drop(queues);
        self.phase.send_replace(DevicePhase::Ready);
        self.generation.send_replace(generation);
        wake_all(wakers);
        if let Err(error) = pumped {
            self.reactor.distrust(error);
        }
    }

    /// The worker is lost: what it had taken fails, what it had not is queued again.
    pub fn lose(&self, lost: &Link, error: &GpuError, overdue: bool) {
        let mut queues = self.queues.lock();
        let mut wakers = Wakers::new();
        if queues.attached.as_ref().is_none_or(|attached| attached.link.id != lost.id) {
            return;
        }
        let Some(mut attached) = queues.attached.take() else {
            return;
        };
        // Whatever finished before the end did finish.
        if let Ok(done) = attached.collect(&mut wakers) {
            self.completed.fetch_add(done, Ordering::Relaxed);
        }
        let taken = attached.link.page.ops_taken();
        let (running, unsent): (Vec<_>, Vec<_>) =
            attached.take_all().into_iter().partition(|flight| flight.position <= taken);
        let candidates: Vec<String> = running.iter().take(16).map(|flight| flight.job.ticket.name.into()).collect();
        let now = Instant::now();
        for flight in running {
            let job = flight.job;
            job.taint_outputs(Some(lost.id));
            let outcome = match job.deadline {
                Some((at, deadline)) if overdue && at <= now => {
                    GpuError::DeadlineExceeded { operation: job.ticket.name.into(), deadline }
                }
                _ => GpuError::ContextPoisoned {
                    operation: job.ticket.name.into(),
                    error: Box::new(error.clone()),
                    candidates: candidates.clone(),
                },
            };
            wakers.extend(job.ticket.complete(Err(outcome)));
        }
        for flight in unsent.into_iter().rev() {
            flight.job.ticket.unsent();
            queues.pending.push_front(flight.job);
        }
        if queues.phase == DevicePhase::Ready {
            queues.phase = DevicePhase::Lost;
        }
        self.losses.fetch_add(1, Ordering::Relaxed);
        drop(queues);
        lost.abandon_requests();
        self.phase.send_if_modified(|phase| {
            let change = *phase == DevicePhase::Ready;
            if change {
                *phase = DevicePhase::Lost;
            }
            change
        });
        wake_all(wakers);
    }

    /// The device ends, for good: every reply is given.
    pub fn end(&self, phase: DevicePhase, failure: Option<GpuError>) {
        let mut queues = self.queues.lock();
        if queues.phase == DevicePhase::ShutDown || queues.phase == phase {
            return;
        }
        queues.phase = phase;
        queues.failure = failure;
        let error = match phase {
            DevicePhase::Failed => self.failed(&queues),
            _ => GpuError::ShutDown { device: self.memory.label.clone() },
        };
        let mut wakers = Wakers::new();
        for job in queues.pending.take_all() {
            wakers.extend(job.ticket.complete(Err(error.clone())));
        }
        if let Some(mut attached) = queues.attached.take() {
            for flight in attached.take_all() {
                flight.job.taint_outputs(Some(attached.link.id));
                wakers.extend(flight.job.ticket.complete(Err(error.clone())));
            }
        }
        drop(queues);
        self.room.notify_waiters();
        self.phase.send_replace(phase);
        wake_all(wakers);
    }

    /// Fails operations past their deadlines.
    pub fn expire(&self, now: Instant) -> Overdue {
        let mut queues = self.queues.lock();
        if queues.earliest_deadline.is_none_or(|at| now < at) {
            return Overdue::Nothing;
        }
        let mut wakers = Wakers::new();
        for job in queues.pending.take_due(now) {
            job.taint_outputs(None);
            let deadline = job.deadline.map_or(Duration::ZERO, |(_, deadline)| deadline);
            let error = GpuError::DeadlineExceeded { operation: job.ticket.name.into(), deadline };
            wakers.extend(job.ticket.complete(Err(error)));
        }
        let flights = || queues.attached.iter().flat_map(Attached::iter);
        let overdue = flights().any(|flight| flight.job.is_due(now));
        let jobs = queues.pending.iter().chain(flights().map(|flight| &flight.job));
        queues.earliest_deadline = jobs.filter_map(|job| job.deadline.map(|(at, _)| at)).min();
        drop(queues);
        self.room.notify_waiters();
        wake_all(wakers);
        if overdue { Overdue::Worker } else { Overdue::Nothing }
    }
}
