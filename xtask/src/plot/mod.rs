//! Draws what the benchmarks printed: two pictures in `docs/plots`, times and rates. PyTorch's figures
//! come from what its own script printed on the same machine.

mod svg;
mod torch;

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;
use xshell::Shell;

use crate::flags::Plot;

const FOLDER: &str = "docs/plots";

/// One benchmark: bars of one scale.
#[derive(Debug, PartialEq)]
struct Group {
    name: String,
    /// What is done in a second; without one, the bars are times.
    unit: Option<String>,
    bars: Vec<Bar>,
}

#[derive(Debug, PartialEq)]
struct Bar {
    side: String,
    /// Microseconds (the median), or units a second.
    value: f64,
    /// The 99th percentile of a time, where single operations were timed, and enough of them.
    p99: Option<f64>,
}

pub(crate) fn run(shell: &Shell, flags: &Plot) -> anyhow::Result<()> {
    let mut groups = groups(&read(&flags.results)?)?;
    if let Some(torch) = &flags.torch {
        torch::add(&mut groups, &read(torch)?);
    }
    ensure!(!groups.is_empty(), "{} holds no comparison", flags.results.display());
    let (rates, times): (Vec<Group>, Vec<Group>) = groups.into_iter().partition(|group| group.unit.is_some());
    shell.create_dir(FOLDER)?;
    let pictures = [
        ("latency", "Time of one operation, median: shorter is better", times),
        ("throughput", "Throughput: longer is better", rates),
    ];
    for (name, title, groups) in pictures {
        let path = format!("{FOLDER}/{name}.svg");
        if groups.is_empty() {
            println!("{path}: nothing to draw");
            continue;
        }
        shell.write_file(&path, svg::draw(title, &groups))?;
        println!("{path}: {} benchmarks", groups.len());
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// The comparisons among the results. Other lines, such as fits and processor times, are not drawn.
fn groups(results: &str) -> anyhow::Result<Vec<Group>> {
    let mut groups = Vec::new();
    for (number, line) in results.lines().enumerate().filter(|(_, line)| line.starts_with('{')) {
        let result: Value = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        let unit = result["unit"].as_str().map(String::from);
        let sides = result["sides"].as_array().map_or(&[][..], Vec::as_slice);
        let bars: Vec<Bar> = sides.iter().filter_map(|side| bar(side, unit.is_some())).collect();
        if let Some(name) = result["benchmark"].as_str()
            && !bars.is_empty()
        {
            groups.push(Group { name: name.into(), unit, bars });
        }
    }
    Ok(groups)
}

fn bar(side: &Value, is_rate: bool) -> Option<Bar> {
    let value = side[if is_rate { "rate" } else { "p50_us" }].as_f64().filter(|value| *value > 0.0)?;
    let enough = side["samples"].as_u64().is_some_and(|samples| samples >= 1000);
    let p99 = if is_rate || !enough { None } else { side["p99_us"].as_f64() };
    Some(Bar { side: side["name"].as_str()?.into(), value, p99 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = r#"skipped: this is no result
{"benchmark":"cuda: sgemm 16, blocking","rounds":2,"sides":[{"name":"ours","samples":1000,"p50_us":13.0,"p99_us":20.5,"ratio":1.08},{"name":"raw <spin>","samples":20,"p50_us":12.0,"p99_us":19.0,"ratio":1.0}]}
{"benchmark":"cuda: gemm 8192, tf32","rounds":2,"unit":"TFLOP/s","sides":[{"name":"ours","p50_us":1.0,"p99_us":1.0,"rate":370.5},{"name":"raw","p50_us":1.0,"p99_us":1.0,"rate":371.0}]}
{"benchmark":"host: submission, by number submitted","slope_ns":0.1}
{"benchmark":"cuda: one device, idle for 5 s","sides":[{"name":"worker","core_percent":0.1}]}
"#;

    #[test]
    fn comparisons_are_read_and_drawn() {
        let mut groups = groups(RESULTS).expect("JSON");
        assert_eq!(groups.len(), 2);
        let first = Bar { side: "ours".into(), value: 13.0, p99: Some(20.5) };
        assert_eq!((&groups[0].bars[0], &groups[0].unit), (&first, &None));
        assert_eq!((groups[1].bars[0].value, groups[1].bars[0].p99), (370.5, None));

        torch::add(&mut groups, "torch mm+sync p50/p99 (14.5, 22.0)\nmm torch.float32 tf32 8192 373.0 TF/s\n");
        assert_eq!(groups[0].bars[2], Bar { side: "PyTorch".into(), value: 14.5, p99: Some(22.0) });
        assert_eq!(groups[1].bars[2].value, 373.0);

        let picture = svg::draw("Times", &groups);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        for text in ["raw &lt;spin&gt;", "13.0 us, p99 20.5", "12.0 us<", "373 TFLOP/s", "cuda: gemm 8192, tf32"] {
            assert!(picture.contains(text), "{text} is not in {picture}");
        }
    }

    #[test]
    fn what_is_no_json_says_where() {
        let error = groups("{\"benchmark\":\"a\",\"sides\":[]}\n{broken\n").expect_err("broken");
        assert_eq!(error.to_string(), "line 2");
    }
}
