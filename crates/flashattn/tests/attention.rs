//! Attention forward against exact attention in `f64`.

mod common;

use atomr_cuda_core::executor::ExecutorKind;
use atomr_cuda_core::{Call, Device, GpuError, GpuRef, bf16, f16};
use atomr_cuda_flashattn::{Attention, AttentionCall, AttentionOptions, HalfElement, Kernels, MaskOptions, Strides};
use atomr_cuda_testing::{Element, on_every_executor, poison, random, seeded};
use rand::Rng;
use rand::seq::IndexedRandom;

use common::{Scores, assert_row, reference};

/// One problem; `lengths` are those of packed sequences, else `batch` equal ones.
#[derive(Debug, Clone)]
struct Case {
    head_dim: usize,
    heads: (usize, usize),
    batch: usize,
    seq_q: usize,
    seq_k: usize,
    causal: bool,
    window: Option<(Option<u32>, Option<u32>)>,
    softcap: Option<f32>,
    scale: Option<f32>,
    lse: bool,
    packed: Option<Vec<(usize, usize)>>,
    /// Factor of q: large ones make large logits.
    gain: f64,
    order: Order,
}

/// Where a sequence begins in packed rows, and its lengths.
#[derive(Clone, Copy)]
struct Sequence {
    q: usize,
    k: usize,
    seq_q: usize,
    seq_k: usize,
}

/// How the elements of q, k, v and o lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    /// `[batch, seq, heads, head_dim]`.
    Dense,
    /// `[batch, heads, seq, head_dim]`.
    HeadsFirst,
    /// Room of 40 elements behind each position, of 16 more behind each sequence.
    Spaced,
}

const PLAIN: Case = Case {
    head_dim: 64,
    heads: (2, 2),
    batch: 1,
    seq_q: 33,
    seq_k: 47,
    causal: false,
    window: None,
    softcap: None,
    scale: None,
    lse: true,
    packed: None,
    gain: 1.0,
    order: Order::Dense,
};

impl Case {
    fn strides(&self, seq: usize, heads: usize) -> (Strides, usize) {
        let (d, batch) = (self.head_dim, if self.packed.is_some() { 1 } else { self.batch });
        let [of_batch, of_seq, of_head] = match self.order {
            Order::Dense => [seq * heads * d, heads * d, d],
            Order::HeadsFirst => [seq * heads * d, d, seq * d],
            Order::Spaced => [seq * (heads * d + 40) + 16, heads * d + 40, d],
        };
        let strides = Strides { batch: of_batch as u64, seq: of_seq as u64, head: of_head as u64 };
        (strides, if self.order == Order::Spaced { batch * of_batch } else { batch * seq * heads * d })
    }

    /// Rows of q and k in all, and where each sequence begins in them.
    fn sequences(&self) -> (usize, usize, Vec<Sequence>) {
        let lengths = self.packed.clone().unwrap_or_else(|| vec![(self.seq_q, self.seq_k); self.batch]);
        let (mut q, mut k, mut sequences) = (0, 0, Vec::new());
        for (seq_q, seq_k) in lengths {
            sequences.push(Sequence { q, k, seq_q, seq_k });
            (q, k) = (q + seq_q, k + seq_k);
        }
        (q, k, sequences)
    }

    fn options(&self, call: Call<Attention>) -> Call<Attention> {
        let mut call = call.shape(self.batch, self.seq_q, self.seq_k, self.head_dim).heads(self.heads.0, self.heads.1);
        if self.causal {
            call = call.causal();
        }
        if let Some((left, right)) = self.window {
            call = call.window(left, right);
        }
        if let Some(softcap) = self.softcap {
            call = call.softcap(softcap);
        }
        if let Some(scale) = self.scale {
            call = call.scale(scale);
        }
        call
    }
}

/// A buffer has at least one element, also where a length is zero.
async fn upload<T: Element>(device: &Device, values: &[T]) -> GpuRef<T> {
    match values {
        [] => device.upload(&poison::<T>(1)).await.unwrap(),
        values => device.upload(values).await.unwrap(),
    }
}

async fn check<T: HalfElement + Element>(device: &Device, case: &Case, kernels: Kernels) {
    let (rows_q, rows_k, sequences) = case.sequences();
    let of = |rows: usize, seq: usize| if case.packed.is_some() { rows } else { seq };
    let (q_at, q_len) = case.strides(of(rows_q, case.seq_q), case.heads.0);
    let (k_at, k_len) = case.strides(of(rows_k, case.seq_k), case.heads.1);
    let mut rng = seeded((rows_q * 31 + rows_k * 7 + case.head_dim) as u64);
    let q: Vec<T> = random::<T>(&mut rng, q_len).iter().map(|q| T::from_f64(q.to_f64() * case.gain)).collect();
    let (k, v): (Vec<T>, Vec<T>) = (random(&mut rng, k_len), random(&mut rng, k_len));
    let (dq, dk, dv) = (upload(device, &q).await, upload(device, &k).await, upload(device, &v).await);
    let o = upload(device, &poison::<T>(q_len)).await;
    let mut call = case.options(device.attention(&dq, &dk, &dv, &o)).kernels(kernels);
    if case.order != Order::Dense {
        call = call.q_strides(q_at).k_strides(k_at).v_strides(k_at).o_strides(q_at);
    }
    let lse = upload(device, &poison::<f32>(rows_q * case.heads.0)).await;
    if case.lse {
        call = call.lse(&lse);
    }
    if case.packed.is_some() {
        let starts = |end: fn(&Sequence) -> usize| -> Vec<i32> {
            std::iter::once(0).chain(sequences.iter().map(|sequence| end(sequence) as i32)).collect()
        };
        let cu_q = device.upload(&starts(|sequence| sequence.q + sequence.seq_q)).await.unwrap();
        let cu_k = device.upload(&starts(|sequence| sequence.k + sequence.seq_k)).await.unwrap();
        call = call.packed(&cu_q, &cu_k, (rows_q, rows_k));
    }
    call.await.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let found = device.download(&o).await.unwrap();
    let found_lse = device.download(&lse).await.unwrap();

    let how = Scores {
        scale: case.scale.map_or(1.0 / (case.head_dim as f64).sqrt(), f64::from),
        softcap: case.softcap.map(f64::from),
        causal: case.causal,
        left: case.window.and_then(|window| window.0.map(i64::from)),
        right: case.window.and_then(|window| window.1.map(i64::from)),
    };
    let place = |at: &Strides, sequence: usize, start: usize, row: usize, head: usize| match case.packed {
        Some(_) => (start + row) * at.seq as usize + head * at.head as usize,
        None => sequence * at.batch as usize + row * at.seq as usize + head * at.head as usize,
    };
    let wide = |from: &[T], at: usize| -> Vec<f64> { from[at..][..case.head_dim].iter().map(|x| x.to_f64()).collect() };
    let mut written = vec![false; found.len()];
    for (index, Sequence { q: q_start, k: k_start, seq_q, seq_k }) in sequences.iter().copied().enumerate() {
        for head in 0..case.heads.0 {
            let head_kv = head / (case.heads.0 / case.heads.1);
            let keys: Vec<_> = (0..seq_k).map(|key| wide(&k, place(&k_at, index, k_start, key, head_kv))).collect();
            let values: Vec<_> = (0..seq_k).map(|key| wide(&v, place(&k_at, index, k_start, key, head_kv))).collect();
            for row in 0..seq_q {
                let at = place(&q_at, index, q_start, row, head);
                let exact = reference(&wide(&q, at), &keys, &values, row, seq_q, &how);
                let lse_at = match case.packed {
                    Some(_) => head * rows_q + q_start + row,
                    None => (index * case.heads.0 + head) * case.seq_q + row,
                };
                let what = format!("{case:?} {kernels:?} {}: sequence {index}, head {head}, row {row}", T::DTYPE);
                assert_row(&found[at..][..case.head_dim], case.lse.then(|| found_lse[lse_at]), &exact, &what);
                written[at..][..case.head_dim].fill(true);
            }
        }
    }
    let untouched =
        found.iter().zip(&written).filter(|(_, written)| !**written).all(|(value, _)| value.to_f64().is_nan());
    assert!(untouched, "{case:?}: what lies between the rows of o was written");
}

/// Every family that the device has.
async fn check_families<T: HalfElement + Element>(device: &Device, case: &Case) {
    check::<T>(device, case, Kernels::Auto).await;
    if device.executor() == ExecutorKind::Cuda {
        check::<T>(device, case, Kernels::Mma).await;
    }
}

async fn check_types(device: &Device, case: &Case) {
    check_families::<bf16>(device, case).await;
    check_families::<f16>(device, case).await;
}

#[test]
fn each_option_alone() {
    on_every_executor(async |device| {
        for head_dim in [64, 128, 256] {
            let base = Case { head_dim, ..PLAIN };
            for case in [
                base.clone(),
                Case { lse: false, ..base.clone() },
                Case { causal: true, ..base.clone() },
                Case { window: Some((Some(9), Some(3))), ..base.clone() },
                Case { window: Some((Some(0), Some(0))), ..base.clone() },
                Case { window: Some((None, Some(5))), ..base.clone() },
                Case { softcap: Some(2.5), ..base.clone() },
                Case { scale: Some(0.37), ..base.clone() },
                Case { heads: (6, 2), batch: 2, ..base.clone() },
                Case { heads: (4, 1), ..base.clone() },
                Case { order: Order::HeadsFirst, batch: 2, ..base.clone() },
                Case { order: Order::Spaced, batch: 2, ..base.clone() },
                Case { packed: Some(vec![(5, 9), (1, 1), (33, 47), (0, 3), (12, 0)]), batch: 5, ..base.clone() },
            ] {
                check_types(device, &case).await;
            }
        }
    });
}

#[test]
fn lengths_at_every_border() {
    on_every_executor(async |device| {
        let lengths = [(0, 5), (1, 1), (1, 0), (5, 0), (1, 300), (64, 64), (65, 63), (129, 177), (200, 1), (257, 333)];
        for (seq_q, seq_k) in lengths {
            for causal in [false, true] {
                let case = Case { seq_q, seq_k, causal, head_dim: 128, heads: (2, 1), ..PLAIN };
                check_families::<bf16>(device, &case).await;
                check_families::<bf16>(device, &Case { head_dim: 64, ..case }).await;
            }
        }
    });
}

#[test]
fn rows_that_see_nothing_give_zeros() {
    on_every_executor(async |device| {
        // With more queries than keys, a causal mask hides all keys from the first rows.
        let case = Case { seq_q: 150, seq_k: 40, causal: true, ..PLAIN };
        check_types(device, &case).await;
        let window = Case { seq_q: 150, seq_k: 40, window: Some((Some(4), Some(2))), ..PLAIN };
        check_types(device, &window).await;
    });
}

#[test]
fn very_large_logits() {
    on_every_executor(async |device| {
        for head_dim in [64, 128, 256] {
            for softcap in [None, Some(30.0)] {
                let case = Case { gain: 300.0, head_dim, softcap, seq_k: 200, ..PLAIN };
                check_types(device, &case).await;
            }
        }
    });
}

/// Options drawn at random, in pairs and more.
#[test]
fn options_together() {
    on_every_executor(async |device| {
        let mut rng = seeded(26);
        let rounds = if device.executor() == ExecutorKind::Cuda { 120 } else { 60 };
        for _ in 0..rounds {
            let heads_kv = rng.random_range(1..=3);
            let limit = |rng: &mut rand::rngs::StdRng| rng.random_bool(0.7).then(|| rng.random_range(0..120));
            let batch = rng.random_range(1..=3);
            let case = Case {
                head_dim: *[64, 128, 256].choose(&mut rng).expect("not empty"),
                heads: (heads_kv * rng.random_range(1..=3), heads_kv),
                batch,
                seq_q: rng.random_range(0..150),
                seq_k: rng.random_range(0..200),
                causal: rng.random(),
                window: rng.random_bool(0.4).then(|| (limit(&mut rng), limit(&mut rng))),
                softcap: rng.random_bool(0.3).then_some(4.0),
                scale: rng.random_bool(0.3).then_some(0.2),
                lse: rng.random(),
                packed: None,
                gain: *[1.0, 5.0].choose(&mut rng).expect("not empty"),
                order: *[Order::Dense, Order::HeadsFirst, Order::Spaced].choose(&mut rng).expect("not empty"),
            };
            let packed = rng.random_bool(0.3) && case.order == Order::Dense;
            let lengths = (0..batch).map(|_| (rng.random_range(0..=case.seq_q), rng.random_range(0..=case.seq_k)));
            let packed = packed.then(|| lengths.collect());
            check_families::<bf16>(device, &Case { packed, ..case }).await;
        }
    });
}

#[test]
fn lengths_on_the_device_are_not_trusted() {
    on_every_executor(async |device| {
        let (q, k) = (poison::<f16>(10 * 64), poison::<f16>(20 * 64));
        let (q, k) = (device.upload(&q).await.unwrap(), device.upload(&k).await.unwrap());
        let o = device.alloc::<f16>(10 * 64).await.unwrap();
        device.fill(&o, f16::ONE).await.unwrap();
        let good = ([0, 4, 10], [0, 12, 20]);
        let bad: [([i32; 3], [i32; 3], &str, u32); 6] = [
            ([1, 4, 10], good.1, "cu_seqlens_q", 0),
            ([0, 6, 4], good.1, "cu_seqlens_q", 2),
            ([0, 4, 11], good.1, "cu_seqlens_q", 2),
            ([0, i32::MIN, 10], good.1, "cu_seqlens_q", 1),
            (good.0, [0, 13, 20], "cu_seqlens_k", 1),
            (good.0, [0, 12, i32::MAX], "cu_seqlens_k", 2),
        ];
        for (cu_q, cu_k, argument, at) in bad {
            let (cu_q, cu_k) = (device.upload(&cu_q).await.unwrap(), device.upload(&cu_k).await.unwrap());
            let call = device.attention(&q, &k, &k, &o).shape(2, 6, 12, 64).heads(1, 1).packed(&cu_q, &cu_k, (10, 20));
            let error = call.clone().await.unwrap_err();
            assert!(
                matches!(&error, GpuError::InvalidArgument { argument: found, .. } if found == argument),
                "{error}"
            );
            assert!(error.to_string().contains(&format!("entry {at} ")), "{error}");
            call.unreported().await.unwrap();
        }
        assert!(device.download(&o).await.unwrap().iter().all(|o| *o == f16::ONE), "nothing was computed");
    });
}
