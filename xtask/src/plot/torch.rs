//! What PyTorch's script prints, a figure a line: a name, then `(a, b)` in microseconds or a rate with
//! `TF/s` behind it.

use super::{Bar, Group};

/// What the figures of a line mean.
#[derive(Clone, Copy)]
enum Figures {
    /// Median and 99th percentile of a time.
    Quantiles,
    /// Time to enqueue, and with the wait at the end; the second one counts.
    Pipelined,
    Rate,
}

/// How a line begins, what it gives, and the benchmarks that it belongs to.
const LINES: [(&str, Figures, &[&str]); 7] = [
    ("torch mm+sync", Figures::Quantiles, &["cuda: sgemm 16, blocking", "cuda: sgemm 16, awaited in tokio"]),
    ("torch mm 16x16", Figures::Pipelined, &["cuda: sgemm 16, pipelined"]),
    ("torch empty(1MB)", Figures::Pipelined, &["cuda: allocation and drop of 1 MiB"]),
    ("mm torch.float32 fp32 8192", Figures::Rate, &["cuda: gemm 8192, f32"]),
    ("mm torch.float32 tf32 8192", Figures::Rate, &["cuda: gemm 8192, tf32"]),
    ("mm torch.bfloat16 8192", Figures::Rate, &["cuda: gemm 8192, bf16"]),
    ("mm torch.float16 8192", Figures::Rate, &["cuda: gemm 8192, f16"]),
];

/// Adds a bar of PyTorch's to every benchmark that `output` has a figure for.
pub(super) fn add(groups: &mut [Group], output: &str) {
    for line in output.lines() {
        let known = LINES.iter().find(|(start, ..)| line.starts_with(start));
        let Some((value, p99, benchmarks)) = known
            .and_then(|(_, figures, benchmarks)| read(line, *figures).map(|(value, p99)| (value, p99, benchmarks)))
        else {
            continue;
        };
        for group in groups.iter_mut().filter(|group| benchmarks.contains(&group.name.as_str())) {
            group.bars.push(Bar { side: "PyTorch".into(), value, p99 });
        }
    }
}

fn read(line: &str, figures: Figures) -> Option<(f64, Option<f64>)> {
    let pair = || {
        let (first, second) = line.rsplit_once('(')?.1.strip_suffix(')')?.split_once(',')?;
        Some((first.trim().parse().ok()?, second.trim().parse().ok()?))
    };
    match figures {
        Figures::Quantiles => pair().map(|(p50, p99)| (p50, Some(p99))),
        Figures::Pipelined => pair().map(|(_, with_wait): (f64, f64)| (with_wait, None)),
        Figures::Rate => Some((line.strip_suffix(" TF/s")?.rsplit_once(' ')?.1.parse().ok()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_line_is_read() {
        let output = "2.11.0 13.0 91900 (2, 28, 9)
torch mm 16x16 out= enqueue/incl us (7.4, 8.8)
torch add small (4.0, 5.0)
torch empty(1MB) (2.6, 2.7)
torch mm+sync p50/p99 (14.5, 21.0)
mm torch.float32 fp32 1024 40.0 TF/s
mm torch.float32 fp32 8192 51.0 TF/s
mm torch.float32 tf32 8192 373.0 TF/s
mm torch.bfloat16 8192 787.0 TF/s
mm torch.float16 8192 753.0 TF/s
graph of 100 mm replay (3.0, 370.0)
";
        let names = LINES.iter().flat_map(|(.., benchmarks)| *benchmarks);
        let mut groups: Vec<Group> =
            names.map(|name| Group { name: name.to_string(), unit: None, bars: Vec::new() }).collect();
        add(&mut groups, output);
        let found: Vec<_> = groups.iter().flat_map(|group| &group.bars).map(|bar| (bar.value, bar.p99)).collect();
        let rates = [51.0, 373.0, 787.0, 753.0].map(|rate| (rate, None));
        assert_eq!(found[..4], [(14.5, Some(21.0)), (14.5, Some(21.0)), (8.8, None), (2.7, None)]);
        assert_eq!(found[4..], rates);
    }

    #[test]
    fn lines_that_are_cut_off_give_nothing() {
        for line in ["torch mm+sync p50/p99 (14.5", "torch empty(1MB) (2.6)", "mm torch.float16 8192 fast TF/s"] {
            let mut groups =
                LINES.map(|(.., benchmarks)| Group { name: benchmarks[0].to_string(), unit: None, bars: Vec::new() });
            add(&mut groups, line);
            assert!(groups.iter().all(|group| group.bars.is_empty()), "{line}");
        }
    }
}
