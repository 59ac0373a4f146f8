//! The running worker as the queues see it: what it has, and what it has finished.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::completion::Outcome;
use crate::error::{GpuError, Result};
use crate::executor::backend::{BufferDesc, MAX_STREAMS};
use crate::memory::Waits;
use crate::operation::{Access, Lane};
use crate::worker::{
    Consumer, FrameHeader, Link, Mail, Page, Producer, PushError, REPLY_SLOTS, decode_mail, encode_frame,
};

use super::job::{InFlight, Job};
use super::rehearsal::Rehearsal;
use super::streams::{StreamPolicy, Streams};

/// Wakers that are called when no lock is held.
pub(crate) type Wakers = SmallVec<[Waker; 8]>;

/// Why an operation was not sent.
pub(crate) enum NotSent {
    /// There is no room now.
    Full,
    /// The worker's side of the ring cannot be.
    Broken(GpuError),
    /// This operation can never be sent.
    Refused(GpuError),
}

pub(crate) struct Attached {
    pub link: Arc<Link>,
    ops: Producer,
    mail: Consumer,
    streams: Streams,
    /// Whether operations of different streams have to be ordered.
    ordered: bool,
    in_order: Vec<InOrder>,
    /// Operations of the side lane, by ticket.
    side: HashMap<u64, InFlight>,
    /// Outcomes that came by mail before their counter.
    outcomes: HashMap<u64, Outcome>,
    free_replies: Vec<u32>,
    len: usize,
    record: Vec<u64>,
    letter: Vec<u64>,
}

/// What one stream has.
struct InOrder {
    next_seq: u64,
    finished_seq: u64,
    in_flight: VecDeque<InFlight>,
}

impl Attached {
    pub fn new(link: Arc<Link>, policy: StreamPolicy) -> Self {
        let (normal, high) = policy.counts();
        let stream = || InOrder { next_seq: 1, finished_seq: 0, in_flight: VecDeque::new() };
        Attached {
            link,
            ops: Producer::default(),
            mail: Consumer::default(),
            streams: Streams::new(policy),
            ordered: normal + high > 1,
            in_order: (0..usize::from(normal + high).min(MAX_STREAMS)).map(|_| stream()).collect(),
            side: HashMap::new(),
            outcomes: HashMap::new(),
            free_replies: (0..REPLY_SLOTS as u32).collect(),
            len: 0,
            record: Vec::new(),
            letter: Vec::new(),
        }
    }

    /// Operations that it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Streams that have something to do.
    pub fn active_streams(&self) -> usize {
        self.in_order.iter().filter(|stream| !stream.in_flight.is_empty()).count()
    }

    pub fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.in_order.iter().flat_map(|stream| &stream.in_flight).chain(self.side.values())
    }

    /// Everything that it has, in the order in which it was sent.
    pub fn take_all(&mut self) -> Vec<InFlight> {
        let streams = self.in_order.iter_mut().flat_map(|stream| std::mem::take(&mut stream.in_flight));
        let mut flights: Vec<InFlight> = streams.chain(self.side.drain().map(|(_, flight)| flight)).collect();
        flights.sort_by_key(|flight| flight.position);
        self.len = 0;
        flights
    }

    /// Sends one operation, or gives it back.
    #[allow(clippy::result_large_err, reason = "the job goes back into the queue")]
    pub fn send(&mut self, job: Job, rehearsal: &Mutex<Rehearsal>) -> Result<(), (Job, NotSent)> {
        let reply_slot = match job.lane == Lane::Stream && job.reply_bytes > 0 {
            true => match self.free_replies.pop() {
                Some(slot) => Some(slot),
                None => return Err((job, NotSent::Full)),
            },
            false => None,
        };
        let (stream, seq, waits) = match job.lane {
            Lane::Side => (None, 0, Waits::new()),
            Lane::Stream => {
                let (stream, waits) = self.place(&job);
                (Some(stream), self.in_order[usize::from(stream)].next_seq, waits)
            }
        };
        let header = FrameHeader {
            ticket: job.ticket.id,
            stream,
            seq,
            library: job.library,
            code: job.code,
            reply_at: reply_slot.map(Page::reply_at),
        };
        let descs = job.buffers.iter().map(|(view, access)| {
            let (segment, offset) = view.buffer.location();
            BufferDesc {
                id: view.buffer.id,
                segment,
                offset: offset + view.offset,
                bytes: view.bytes,
                access: *access,
                dtype: view.dtype(),
                whole: *access == Access::Write && view.is_whole(),
            }
        });
        encode_frame(&mut self.record, &header, &waits, descs, &job.params);
        let (at, words) = self.link.page.ops();
        let position = match self.ops.push(&at, words, &self.record) {
            Ok(position) => position,
            Err(refused) => {
                self.free_replies.extend(reply_slot);
                let error = match refused {
                    PushError::Full => NotSent::Full,
                    PushError::TooLarge => {
                        NotSent::Refused(GpuError::invalid(job.ticket.name, "parameters", "larger than the ring"))
                    }
                    PushError::Corrupt(corrupt) => NotSent::Broken(GpuError::Protocol {
                        side: "worker".into(),
                        reason: format!("its position in the operation ring cannot be: {corrupt:?}"),
                    }),
                };
                return Err((job, error));
            }
        };
        if self.ops.must_wake(&at) {
            self.link.wake();
        }
        self.len += 1;
        let flight = InFlight { job, seq, position, reply_slot };
        match stream {
            Some(stream) => {
                if self.ordered {
                    flight.job.note(self.link.id, stream, seq);
                }
                flight.job.ticket.sent(stream, seq);
                if flight.job.rehearse {
                    rehearsal.lock().observe(&flight.job, stream);
                }
                let stream = &mut self.in_order[usize::from(stream)];
                stream.next_seq += 1;
                stream.in_flight.push_back(flight);
            }
            None => drop(self.side.insert(flight.job.ticket.id, flight)),
        }
        Ok(())
    }

    /// The stream for an operation, and what it has to wait for on others.
    fn place(&mut self, job: &Job) -> (u8, Waits) {
        if !self.ordered {
            return (0, Waits::new());
        }
        let mut waits = job.waits(self.link.id);
        waits.retain(|(stream, seq)| *seq > self.in_order[usize::from(*stream)].finished_seq);
        let load = |stream: u8| self.in_order[usize::from(stream)].in_flight.len();
        let stream = self.streams.pick(job.library, job.priority, &waits, load);
        waits.retain(|(awaited, _)| *awaited != stream);
        (stream, waits)
    }

    /// Collects everything that has finished; how much that was.
    pub fn collect(&mut self, wakers: &mut Wakers) -> Result<u64> {
        // Failures come by mail before their counters: the counters are read first.
        let mut counters = [0; MAX_STREAMS];
        for (index, stream) in self.in_order.iter().enumerate() {
            let counter = self.link.page.counter(index).load(Ordering::Acquire);
            if counter >= stream.next_seq || counter < stream.finished_seq {
                let (from, to) = (stream.finished_seq, stream.next_seq - 1);
                let reason = format!("the counter of stream {index} is {counter}, expected {from} to {to}");
                return Err(GpuError::Protocol { side: "worker".into(), reason });
            }
            counters[index] = counter;
        }
        loop {
            let (at, words) = self.link.page.mail();
            match self.mail.pop(&at, words, &mut self.letter) {
                Ok(false) => break,
                Ok(true) => {
                    let mail = decode_mail(&self.letter)?;
                    self.take_mail(mail, wakers);
                }
                Err(corrupt) => {
                    let reason = format!("its position in the mail ring cannot be: {corrupt:?}");
                    return Err(GpuError::Protocol { side: "worker".into(), reason });
                }
            }
        }
        let mut done = 0;
        for (index, counter) in counters.into_iter().enumerate().take(self.in_order.len()) {
            self.in_order[index].finished_seq = counter;
            while let Some(flight) = self.in_order[index].in_flight.pop_front_if(|flight| flight.seq <= counter) {
                self.finish(flight, wakers);
                done += 1;
            }
        }
        self.len -= done;
        Ok(done as u64)
    }

    fn take_mail(&mut self, mail: Mail, wakers: &mut Wakers) {
        let (ticket, outcome) = match mail {
            Mail::Failed { ticket, error } => (ticket, Err(error)),
            Mail::Done { ticket, reply } => (ticket, Ok(reply)),
        };
        match self.side.remove(&ticket) {
            Some(flight) => {
                self.len -= 1;
                if outcome.is_err() {
                    flight.job.taint_outputs(None);
                }
                wakers.extend(flight.job.ticket.complete(outcome));
            }
            // What a worker says of operations that it does not have is not kept.
            None if self.outcomes.len() >= self.len => {}
            None => drop(self.outcomes.insert(ticket, outcome)),
        }
    }

    fn finish(&mut self, flight: InFlight, wakers: &mut Wakers) {
        let outcome = if self.outcomes.is_empty() { None } else { self.outcomes.remove(&flight.job.ticket.id) };
        let outcome = outcome.unwrap_or_else(|| match flight.reply_slot {
            Some(slot) => Ok(self.link.page.read_reply(slot, flight.job.reply_bytes as usize)),
            None => Ok(Vec::new()),
        });
        self.free_replies.extend(flight.reply_slot);
        match &outcome {
            Ok(_) => flight.job.clear_taint(),
            Err(_) => flight.job.taint_outputs(None),
        }
        wakers.extend(flight.job.ticket.complete(outcome));
    }
}
