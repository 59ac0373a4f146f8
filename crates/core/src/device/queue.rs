//! The operations that wait in the front: one queue a client, served in turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::completion::Ticket;

use super::job::Job;

/// Waiting operations. Those of one client keep their order; clients take turns, so that one with a
/// long queue does not hold up the others.
#[derive(Default)]
pub(crate) struct PendingQueue {
    clients: Vec<Client>,
    turn: usize,
    len: usize,
}

struct Client {
    id: u32,
    jobs: VecDeque<Job>,
}

impl PendingQueue {
    /// Operations that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Operations of one client that wait.
    pub fn len_of(&self, client: u32) -> usize {
        self.clients.iter().find(|it| it.id == client).map_or(0, |it| it.jobs.len())
    }

    fn of(&mut self, client: u32) -> &mut VecDeque<Job> {
        let at = self.clients.iter().position(|it| it.id == client).unwrap_or_else(|| {
            self.clients.push(Client { id: client, jobs: VecDeque::new() });
            self.clients.len() - 1
        });
        &mut self.clients[at].jobs
    }

    /// Behind its client's others.
    pub fn push(&mut self, job: Job) {
        self.len += 1;
        self.of(job.client).push_back(job);
    }

    /// Before its client's others: it was taken out, or sent and never begun.
    pub fn push_front(&mut self, job: Job) {
        self.len += 1;
        self.of(job.client).push_front(job);
    }

    /// The next operation: the first of the client whose turn it is.
    pub fn pop(&mut self) -> Option<Job> {
        if self.len == 0 {
            return None;
        }
        loop {
            self.turn = if self.turn >= self.clients.len() { 0 } else { self.turn };
            if let Some(job) = self.clients[self.turn].jobs.pop_front() {
                self.len -= 1;
                self.turn += 1;
                return Some(job);
            }
            // A client with nothing to do costs nothing, also when it never comes back.
            self.clients.swap_remove(self.turn);
        }
    }

    /// Takes a cancelled operation out.
    pub fn remove(&mut self, client: u32, ticket: &Arc<Ticket>) -> Option<Job> {
        let jobs = self.of(client);
        // Most likely one of the last.
        let at = jobs.iter().rposition(|job| Arc::ptr_eq(&job.ticket, ticket))?;
        let job = jobs.remove(at);
        self.len -= 1;
        job
    }

    /// Takes out what is past its deadline.
    pub fn take_due(&mut self, now: Instant) -> Vec<Job> {
        self.take_if(|job| job.is_due(now))
    }

    /// Takes everything out.
    pub fn take_all(&mut self) -> Vec<Job> {
        self.take_if(|_| true)
    }

    /// Takes out what `leaves` says.
    pub fn take_if(&mut self, mut leaves: impl FnMut(&Job) -> bool) -> Vec<Job> {
        let mut taken = Vec::new();
        for client in &mut self.clients {
            let (leaving, staying): (VecDeque<Job>, VecDeque<Job>) =
                std::mem::take(&mut client.jobs).into_iter().partition(&mut leaves);
            client.jobs = staying;
            taken.extend(leaving);
        }
        self.len -= taken.len();
        taken
    }

    pub fn iter(&self) -> impl Iterator<Item = &Job> {
        self.clients.iter().flat_map(|client| &client.jobs)
    }
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::super::streams::Priority;
    use super::*;
    use crate::operation::{Lane, LibraryId};

    fn job(client: u32, id: u64) -> Job {
        Job {
            ticket: Ticket::new(id, "test"),
            library: LibraryId::CORE,
            code: 0,
            lane: Lane::Stream,
            priority: Priority::Normal,
            client,
            rehearse: false,
            reply_bytes: 0,
            deadline: None,
            buffers: SmallVec::new(),
            params: SmallVec::new(),
        }
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let mut queue = PendingQueue::default();
        for id in 0..5 {
            queue.push(job(1, id));
        }
        queue.push(job(2, 10));
        queue.push(job(2, 11));
        let mut order = Vec::new();
        while let Some(job) = queue.pop() {
            order.push(job.ticket.id);
        }
        assert_eq!(order, [0, 10, 1, 11, 2, 3, 4]);
        assert!(queue.is_empty() && queue.clients.len() <= 1);
    }

    #[test]
    fn what_is_taken_out_is_gone_and_the_rest_stays_in_order() {
        let mut queue = PendingQueue::default();
        let jobs: Vec<Job> = (0..4).map(|id| job(0, id)).collect();
        let second = jobs[1].ticket.clone();
        jobs.into_iter().for_each(|job| queue.push(job));
        assert_eq!(queue.remove(0, &second).expect("it waits").ticket.id, 1);
        assert!(queue.remove(0, &second).is_none());
        let taken = queue.take_if(|job| job.ticket.id == 2);
        assert_eq!((taken.len(), queue.len(), queue.len_of(0)), (1, 2, 2));
        queue.push_front(taken.into_iter().next().expect("one"));
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|job| job.ticket.id).collect();
        assert_eq!(order, [2, 0, 3]);
    }
}
