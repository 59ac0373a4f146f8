//! Who used a buffer last, on which stream: what later operations have to wait for.

use smallvec::SmallVec;

use crate::operation::Access;

/// A place in a stream: its number, and the sequence number of an operation on it.
pub(crate) type Point = (u8, u64);

/// The points of other streams that an operation has to wait for, at most one a stream.
pub(crate) type Waits = SmallVec<[Point; 2]>;

/// The last uses of a buffer by one worker's streams.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// The worker that these points belong to; another one's streams begin anew.
    worker: u64,
    writer: Option<Point>,
    /// Reads since the last write, the latest of each stream.
    readers: SmallVec<[Point; 2]>,
}

impl Uses {
    /// Adds to `waits` what a use with `access` has to wait for: a read for the last write, a write
    /// for it and for every read since.
    pub fn before(&self, worker: u64, access: Access, waits: &mut Waits) {
        if self.worker != worker {
            return;
        }
        for point in self.writer.iter().chain(self.readers.iter().filter(|_| access.writes())) {
            add(waits, *point);
        }
    }

    /// Notes a use.
    pub fn note(&mut self, worker: u64, access: Access, point: Point) {
        if self.worker != worker {
            *self = Uses { worker, ..Uses::default() };
        }
        if access.writes() {
            self.writer = Some(point);
            self.readers.clear();
        } else {
            add(&mut self.readers, point);
        }
    }
}

fn add(points: &mut SmallVec<[Point; 2]>, (stream, seq): Point) {
    match points.iter_mut().find(|point| point.0 == stream) {
        Some(point) => point.1 = point.1.max(seq),
        None => points.push((stream, seq)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(uses: &Uses, worker: u64, access: Access) -> Vec<Point> {
        let mut waits = Waits::new();
        uses.before(worker, access, &mut waits);
        waits.to_vec()
    }

    #[test]
    fn reads_wait_for_the_last_write_and_writes_for_every_read_since() {
        let mut uses = Uses::default();
        uses.note(7, Access::Write, (0, 1));
        assert_eq!(before(&uses, 7, Access::Read), [(0, 1)]);
        uses.note(7, Access::Read, (1, 4));
        uses.note(7, Access::Read, (1, 5));
        uses.note(7, Access::Read, (2, 9));
        assert_eq!(before(&uses, 7, Access::Read), [(0, 1)]);
        assert_eq!(before(&uses, 7, Access::ReadWrite), [(0, 1), (1, 5), (2, 9)]);
        uses.note(7, Access::ReadWrite, (2, 10));
        assert_eq!(before(&uses, 7, Access::Write), [(2, 10)]);
        assert_eq!(before(&uses, 8, Access::Write), [], "another worker's streams begin anew");
    }
}
