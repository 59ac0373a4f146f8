//! Attention against a paged cache, compared with exact attention in `f64`.

mod common;

use atomr_cuda_core::executor::ExecutorKind;
use atomr_cuda_core::{Device, Fault, GpuError, bf16, f16};
use atomr_cuda_flashattn::{AttentionCall, DecodeOptions, HalfElement, MaskOptions};
use atomr_cuda_testing::{Element, on_every_executor, poison, random, seeded};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};

use common::{Scores, assert_row, reference};

#[derive(Debug, Clone)]
struct Case {
    head_dim: usize,
    heads: (usize, usize),
    seq_q: usize,
    page_size: usize,
    lens: Vec<usize>,
    window: Option<u32>,
    softcap: Option<f32>,
    splits: Option<u32>,
    lse: bool,
}

const PLAIN: Case = Case {
    head_dim: 64,
    heads: (4, 2),
    seq_q: 1,
    page_size: 16,
    lens: Vec::new(),
    window: None,
    softcap: None,
    splits: None,
    lse: true,
};

async fn check<T: HalfElement + Element>(device: &Device, case: &Case) {
    let (d, batch, (heads_q, heads_kv)) = (case.head_dim, case.lens.len(), case.heads);
    let max_pages = case.lens.iter().max().map_or(0, |len| len.div_ceil(case.page_size)) + 1;
    let num_pages = batch * max_pages + 3;
    let mut rng = seeded((num_pages * d + case.seq_q) as u64);
    let mut pages: Vec<usize> = (0..num_pages).collect();
    pages.shuffle(&mut rng);
    // Entries behind a sequence's end name no page: they must not be looked at.
    let mut table = vec![i32::MAX; batch * max_pages];
    for (sequence, len) in case.lens.iter().enumerate() {
        for page in 0..len.div_ceil(case.page_size) {
            table[sequence * max_pages + page] = pages.pop().expect("there are enough") as i32;
        }
    }
    let row = |sequence: usize, token: usize, head: usize| {
        let page = table[sequence * max_pages + token / case.page_size] as usize;
        ((page * case.page_size + token % case.page_size) * heads_kv + head) * d
    };
    // NaN in every place of the cache that no sequence has.
    let (mut k, mut v) = (poison::<T>(num_pages * case.page_size * heads_kv * d), Vec::new());
    v.clone_from(&k);
    for (sequence, len) in case.lens.iter().enumerate() {
        for token in 0..*len {
            for head in 0..heads_kv {
                let at = row(sequence, token, head);
                k[at..at + d].copy_from_slice(&random::<T>(&mut rng, d));
                v[at..at + d].copy_from_slice(&random::<T>(&mut rng, d));
            }
        }
    }
    let q: Vec<T> = random(&mut rng, batch * case.seq_q * heads_q * d);
    let (dq, dk) = (device.upload(&q).await.unwrap(), device.upload(&k).await.unwrap());
    let (dv, o) = (device.upload(&v).await.unwrap(), device.upload(&poison::<T>(q.len())).await.unwrap());
    let lens: Vec<i32> = case.lens.iter().map(|len| *len as i32).collect();
    let (dtable, dlens) = (device.upload(&table).await.unwrap(), device.upload(&lens).await.unwrap());
    let lse = device.upload(&poison::<f32>(batch * heads_q * case.seq_q)).await.unwrap();
    let mut call = device
        .decode_attention(&dq, &dk, &dv, &o)
        .shape(batch, case.seq_q, d)
        .heads(heads_q, heads_kv)
        .cache(num_pages, case.page_size)
        .pages(&dtable, &dlens, max_pages);
    if let Some(left) = case.window {
        call = call.window(left);
    }
    if let Some(softcap) = case.softcap {
        call = call.softcap(softcap);
    }
    if let Some(splits) = case.splits {
        call = call.splits(splits);
    }
    if case.lse {
        call = call.lse(&lse);
    }
    call.await.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let (found, found_lse) = (device.download(&o).await.unwrap(), device.download(&lse).await.unwrap());

    let how = Scores {
        scale: 1.0 / (d as f64).sqrt(),
        softcap: case.softcap.map(f64::from),
        causal: true,
        left: case.window.map(i64::from),
        right: None,
    };
    let wide = |from: &[T], at: usize| -> Vec<f64> { from[at..][..d].iter().map(|x| x.to_f64()).collect() };
    for (sequence, len) in case.lens.iter().enumerate() {
        for head in 0..heads_q {
            let head_kv = head / (heads_q / heads_kv);
            let keys: Vec<_> = (0..*len).map(|token| wide(&k, row(sequence, token, head_kv))).collect();
            let values: Vec<_> = (0..*len).map(|token| wide(&v, row(sequence, token, head_kv))).collect();
            for query in 0..case.seq_q {
                let at = ((sequence * case.seq_q + query) * heads_q + head) * d;
                let exact = reference(&wide(&q, at), &keys, &values, query, case.seq_q, &how);
                let lse = case.lse.then(|| found_lse[(sequence * heads_q + head) * case.seq_q + query]);
                let what = format!("{case:?} {}: sequence {sequence}, head {head}, query {query}", T::DTYPE);
                assert_row(&found[at..][..d], lse, &exact, &what);
            }
        }
    }
}

#[test]
fn each_option_alone() {
    on_every_executor(async |device| {
        for head_dim in [64, 128, 256] {
            let base = Case { head_dim, lens: vec![1, 17, 0, 130, 16], ..PLAIN };
            for case in [
                base.clone(),
                Case { lse: false, ..base.clone() },
                Case { seq_q: 3, ..base.clone() },
                Case { heads: (2, 2), ..base.clone() },
                Case { heads: (40, 2), ..base.clone() },
                Case { page_size: 64, ..base.clone() },
                Case { window: Some(20), ..base.clone() },
                Case { window: Some(0), ..base.clone() },
                Case { softcap: Some(3.0), ..base.clone() },
                Case { splits: Some(3), ..base.clone() },
                Case { lens: vec![700], splits: Some(128), ..base.clone() },
            ] {
                check::<bf16>(device, &case).await;
                check::<f16>(device, &case).await;
            }
        }
    });
}

#[test]
fn options_together() {
    on_every_executor(async |device| {
        let mut rng = seeded(7);
        let cuda = device.executor() == ExecutorKind::Cuda;
        for _ in 0..if cuda { 60 } else { 30 } {
            let heads_kv = rng.random_range(1..=2);
            let longest = if cuda { 3000 } else { 400 };
            let case = Case {
                head_dim: *[64, 128, 256].choose(&mut rng).expect("not empty"),
                heads: (heads_kv * *[1, 2, 8, 17].choose(&mut rng).expect("not empty"), heads_kv),
                seq_q: rng.random_range(1..=4),
                page_size: *[16, 32, 256].choose(&mut rng).expect("not empty"),
                lens: (0..rng.random_range(1..=4)).map(|_| rng.random_range(0..longest)).collect(),
                window: rng.random_bool(0.3).then(|| rng.random_range(0..200)),
                softcap: rng.random_bool(0.3).then_some(5.0),
                splits: rng.random_bool(0.5).then(|| rng.random_range(1..=20)),
                lse: rng.random(),
            };
            check::<bf16>(device, &case).await;
        }
    });
}

#[test]
fn pages_and_lengths_on_the_device_are_not_trusted() {
    on_every_executor(async |device| {
        let cache = device.alloc::<bf16>(4 * 16 * 64).await.unwrap();
        device.fill(&cache, bf16::ONE).await.unwrap();
        let q = device.upload(&[bf16::ONE; 2 * 64]).await.unwrap();
        let o = device.alloc::<bf16>(2 * 64).await.unwrap();
        let bad: [([i32; 4], [i32; 2], &str); 5] = [
            ([0, 1, 2, 3], [32, 33], "cache_lens"),
            ([0, 1, 2, 3], [-1, 3], "cache_lens"),
            ([0, 1, 2, i32::MAX], [32, 17], "page_table"),
            ([-1, 1, 2, 3], [1, 0], "page_table"),
            ([0, 4, 2, 3], [20, 0], "page_table"),
        ];
        for (table, lens, argument) in bad {
            let (table, lens) = (device.upload(&table).await.unwrap(), device.upload(&lens).await.unwrap());
            let call = device
                .decode_attention(&q, &cache, &cache, &o)
                .shape(2, 1, 64)
                .heads(1, 1)
                .cache(4, 16)
                .pages(&table, &lens, 2);
            let error = call.clone().await.unwrap_err();
            assert!(
                matches!(&error, GpuError::InvalidArgument { argument: found, .. } if found == argument),
                "{error}"
            );
            call.unreported().await.unwrap();
        }
        assert_eq!(device.generation(), 1, "the worker lives on");
    });
}

#[test]
fn a_worker_that_dies_is_not_noticed() {
    on_every_executor(async |device| {
        let case = Case { lens: vec![40, 3], ..PLAIN };
        check::<bf16>(device, &case).await;
        let error = device.fault(Fault::Kill).await.unwrap_err();
        assert!(matches!(error, GpuError::ContextPoisoned { .. }), "{error}");
        check::<bf16>(device, &case).await;
    });
}
