//! The ring under every interleaving of producer and consumer.

use atomr_cuda_core_loom::ring::{Consumer, Positions, Producer, PushError};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

struct Shared {
    words: Vec<AtomicU64>,
    head: AtomicU64,
    tail: AtomicU64,
    sleeping: AtomicU64,
}

impl Shared {
    fn new(words: usize) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        Arc::new(Shared { words: (0..words).map(|_| zero()).collect(), head: zero(), tail: zero(), sleeping: zero() })
    }

    fn at(&self) -> Positions<'_> {
        Positions { head: &self.head, tail: &self.tail, sleeping: &self.sleeping }
    }
}

#[test]
fn records_arrive_whole_and_in_order_through_a_ring_that_fills_up() {
    loom::model(|| {
        let shared = Shared::new(4);
        let theirs = shared.clone();
        let producer = loom::thread::spawn(move || {
            let mut producer = Producer::default();
            let mut pushed = Vec::new();
            for record in [[1, 2], [3, 4]] {
                match producer.push(&theirs.at(), &theirs.words, &record) {
                    Ok(_) => pushed.push(record),
                    Err(PushError::Full) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            pushed
        });
        let mut consumer = Consumer::default();
        let (mut out, mut popped) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            if consumer.pop(&shared.at(), &shared.words, &mut out).expect("sound") {
                popped.push([out[0], out[1]]);
            }
        }
        let pushed = producer.join().expect("no panic");
        while consumer.pop(&shared.at(), &shared.words, &mut out).expect("sound") {
            popped.push([out[0], out[1]]);
        }
        assert_eq!(popped, pushed);
    });
}

#[test]
fn a_sleeping_consumer_is_always_woken() {
    loom::model(|| {
        let shared = Shared::new(4);
        let theirs = shared.clone();
        let producer = loom::thread::spawn(move || {
            let mut producer = Producer::default();
            producer.push(&theirs.at(), &theirs.words, &[7]).expect("room");
            producer.must_wake(&theirs.at())
        });
        let mut consumer = Consumer::default();
        let mut out = Vec::new();
        let early = consumer.pop(&shared.at(), &shared.words, &mut out).expect("sound");
        let slept = !early && consumer.prepare_sleep(&shared.at());
        let woken = producer.join().expect("no panic");
        // Whoever went to sleep was woken, or had already seen the record.
        assert!(!slept || woken);
    });
}
