//! The host half: exact attention in f32, row by row.

mod rows;

use atomr_cuda_core::executor::{HostCall, HostLibrary, HostSetup, Step, unknown_operation};
use atomr_cuda_core::{DType, GpuError, Operation, Result, bf16, f16};

use crate::op::{Attention, AttentionPlan, Decode, HalfElement, LIBRARY, PlanQuery, Shape, Strides, expect_half};

use rows::{Attended, Keys, Mask, Row, attend};

/// Makes the host half of one stream.
pub(crate) fn new(_setup: &HostSetup) -> Result<Box<dyn HostLibrary>> {
    Ok(Box::new(HostAttention))
}

struct HostAttention;

impl HostLibrary for HostAttention {
    fn run(&mut self, call: &mut HostCall<'_>) -> Result<Step> {
        match call.code() {
            PlanQuery::CODE => plan(call),
            Attention::CODE => match half(Attention::NAME, call)? {
                DType::F16 => attention::<f16>(call),
                _ => attention::<bf16>(call),
            },
            Decode::CODE => match half(Decode::NAME, call)? {
                DType::F16 => decode::<f16>(call),
                _ => decode::<bf16>(call),
            },
            code => Err(unknown_operation(LIBRARY, code)),
        }?;
        Ok(Step::Done)
    }
}

fn half(operation: &str, call: &HostCall<'_>) -> Result<DType> {
    let dtype = call.dtype(0)?;
    expect_half(operation, dtype)?;
    Ok(dtype)
}

fn plan(call: &mut HostCall<'_>) -> Result<()> {
    let reply = postcard::to_allocvec(&AttentionPlan::host())
        .map_err(|error| GpuError::invalid(PlanQuery::NAME, "reply", format!("it does not serialise: {error}")))?;
    call.reply_bytes(&reply);
    Ok(())
}

/// One sequence: where it begins in q and in k, in rows where packed, else in sequences.
struct Sequence {
    q: usize,
    k: usize,
    seq_q: usize,
    seq_k: usize,
}

fn attention<T: HalfElement + Into<f32>>(call: &mut HostCall<'_>) -> Result<()>
where
    f32: Into<Rounded<T>>,
{
    let op: Attention = call.params()?;
    let [q_at, k_at, v_at, o_at] = op.strides();
    let (q, k, v) = (call.read::<T>(0)?, call.read::<T>(1)?, call.read::<T>(2)?);
    let o = call.write::<T>(3)?;
    let mut lse = op.lse.map(|at| call.write::<f32>(at.into())).transpose()?;
    let (batch, heads_q) = (op.shape.batch as usize, op.shape.heads_q as usize);
    let (seq_q, seq_k) = (op.seq_q as usize, op.seq_k as usize);
    let mut sequences: Vec<_> = (0..batch).map(|at| Sequence { q: at, k: at, seq_q, seq_k }).collect();
    if let Some(packed) = op.packed {
        let cu_q = call.read::<i32>(packed.at.into())?;
        let cu_k = call.read::<i32>(usize::from(packed.at) + 1)?;
        let problem = lengths_problem(&cu_q[..=batch], packed.total_q, op.seq_q)
            .map(|at| 1 << 32 | at)
            .or_else(|| lengths_problem(&cu_k[..=batch], packed.total_k, op.seq_k).map(|at| 2 << 32 | at));
        if packed.validate {
            call.reply(problem.unwrap_or(0));
        }
        if problem.is_some() {
            return Ok(());
        }
        for (at, sequence) in sequences.iter_mut().enumerate() {
            let (q, k) = (cu_q[at] as usize, cu_k[at] as usize);
            *sequence = Sequence { q, k, seq_q: cu_q[at + 1] as usize - q, seq_k: cu_k[at + 1] as usize - k };
        }
    }
    let place = |strides: &Strides, start: usize, row: usize, head: usize| {
        let start = start * if op.packed.is_some() { strides.seq } else { strides.batch } as usize;
        start + row * strides.seq as usize + head * strides.head as usize
    };
    for sequence in &sequences {
        let mask = Mask {
            offset: sequence.seq_k as i64 - sequence.seq_q as i64,
            left: op.window.left.map(i64::from),
            right: if op.causal { Some(0) } else { op.window.right.map(i64::from) },
            keys: sequence.seq_k,
        };
        let tensors = Tensors {
            q: |head, row| &q[place(&q_at, sequence.q, row, head)..],
            k: |head, row| &k[place(&k_at, sequence.k, row, head)..],
            v: |head, row| &v[place(&v_at, sequence.k, row, head)..],
        };
        attend_heads(&op.shape, sequence.seq_q, &mask, tensors, |head, row, result| {
            narrow(&result.output, &mut o[place(&o_at, sequence.q, row, head)..]);
            if let Some(lse) = lse.as_deref_mut() {
                lse[match op.packed {
                    Some(packed) => head * packed.total_q as usize + sequence.q + row,
                    None => (sequence.q * heads_q + head) * seq_q + row,
                }] = result.lse;
            }
        });
    }
    Ok(())
}

fn decode<T: HalfElement + Into<f32>>(call: &mut HostCall<'_>) -> Result<()>
where
    f32: Into<Rounded<T>>,
{
    let op: Decode = call.params()?;
    let [q_at, k_at, v_at, o_at] = op.strides();
    let (q, k, v) = (call.read::<T>(0)?, call.read::<T>(1)?, call.read::<T>(2)?);
    let o = call.write::<T>(3)?;
    let (page_table, cache_lens) = (call.read::<i32>(4)?, call.read::<i32>(5)?);
    let mut lse = op.lse.then(|| call.write::<f32>(6)).transpose()?;
    let (heads_q, seq_q) = (op.shape.heads_q as usize, op.seq_q as usize);
    let (max_pages, page_size) = (op.max_pages as usize, op.page_size as usize);
    if op.validate {
        call.reply(pages_problem(&op, page_table, cache_lens).unwrap_or(0));
    }
    let place = |strides: &Strides, batch: usize, row: usize, head: usize| {
        batch * strides.batch as usize + row * strides.seq as usize + head * strides.head as usize
    };
    for at in 0..op.shape.batch as usize {
        // What does not fit is brought into bounds, as on the GPU.
        let tokens = i64::from(cache_lens[at]).clamp(0, op.capacity() as i64) as usize;
        let page = |token: usize| {
            let page = page_table[at * max_pages + token / page_size];
            (page as u32 as usize).min(op.num_pages as usize - 1)
        };
        let mask = Mask {
            offset: tokens as i64 - op.seq_q as i64,
            left: op.window.map(i64::from),
            right: Some(0),
            keys: tokens,
        };
        let tensors = Tensors {
            q: |head, row| &q[place(&q_at, at, row, head)..],
            k: |head, token| &k[place(&k_at, page(token), token % page_size, head)..],
            v: |head, token| &v[place(&v_at, page(token), token % page_size, head)..],
        };
        attend_heads(&op.shape, seq_q, &mask, tensors, |head, row, result| {
            narrow(&result.output, &mut o[place(&o_at, at, row, head)..]);
            if let Some(lse) = lse.as_deref_mut() {
                lse[(at * heads_q + head) * seq_q + row] = result.lse;
            }
        });
    }
    Ok(())
}

/// Where a head's row begins: of q, of k and of v.
struct Tensors<Q, K, V> {
    q: Q,
    k: K,
    v: V,
}

/// Attention of one sequence; `store` gets a query head, a row and what it gives.
fn attend_heads<'a, T: HalfElement + Into<f32>>(
    shape: &Shape,
    seq_q: usize,
    mask: &Mask,
    tensors: Tensors<
        impl Fn(usize, usize) -> &'a [T],
        impl Fn(usize, usize) -> &'a [T],
        impl Fn(usize, usize) -> &'a [T],
    >,
    mut store: impl FnMut(usize, usize, &Attended),
) {
    let widen = |row: &[T]| row.iter().take(shape.head_dim as usize).map(|value| (*value).into()).collect();
    let group = shape.group() as usize;
    for head_kv in 0..shape.heads_kv as usize {
        let keys =
            Keys::gather(mask.keys, |row| widen((tensors.k)(head_kv, row)), |row| widen((tensors.v)(head_kv, row)));
        let rows: Vec<Row> = (head_kv * group..(head_kv + 1) * group)
            .flat_map(|head| (0..seq_q).map(move |position| (head, position)))
            .map(|(head, position)| Row { query: widen((tensors.q)(head, position)), position, head })
            .collect();
        for (row, result) in rows.iter().zip(attend(&rows, &keys, mask, shape)) {
            store(row.head, row.position, &result);
        }
    }
}

/// The first of `starts` that cannot be where a sequence starts or ends.
fn lengths_problem(starts: &[i32], total: u64, longest: u64) -> Option<u64> {
    let fits = |at: usize| match at {
        0 => starts[0] == 0,
        _ => {
            let length = i64::from(starts[at]) - i64::from(starts[at - 1]);
            (0..=longest as i64).contains(&length) && i64::from(starts[at]) <= total as i64
        }
    };
    (0..starts.len()).find(|at| !fits(*at)).map(|at| at as u64)
}

/// The first length or page that cannot be, as the reply has it.
fn pages_problem(op: &Decode, page_table: &[i32], cache_lens: &[i32]) -> Option<u64> {
    let lens = &cache_lens[..op.shape.batch as usize];
    if let Some(at) = lens.iter().position(|len| !(0..=op.capacity() as i64).contains(&i64::from(*len))) {
        return Some(1 << 32 | at as u64);
    }
    let max_pages = op.max_pages as usize;
    let used = lens.iter().enumerate().flat_map(|(sequence, len)| {
        (0..(*len as usize).div_ceil(op.page_size as usize)).map(move |page| sequence * max_pages + page)
    });
    used.into_iter()
        .find(|at| !(0..op.num_pages as i64).contains(&i64::from(page_table[*at])))
        .map(|at| 2 << 32 | at as u64)
}

/// A value rounded to an element type.
struct Rounded<T>(T);

impl From<f32> for Rounded<f16> {
    fn from(value: f32) -> Self {
        Rounded(f16::from_f32(value))
    }
}

impl From<f32> for Rounded<bf16> {
    fn from(value: f32) -> Self {
        Rounded(bf16::from_f32(value))
    }
}

fn narrow<T>(values: &[f32], to: &mut [T])
where
    f32: Into<Rounded<T>>,
{
    to.iter_mut().zip(values).for_each(|(to, value)| *to = (*value).into().0);
}
