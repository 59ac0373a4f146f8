//! What a process costs while nothing is asked of it.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::compare::wanted;

/// Waits for `span` and prints, as JSON, what part of one core each of the named processes has used
/// meanwhile; each is to stay below one percent.
pub fn report_idle(benchmark: &str, span: Duration, processes: &[(&str, u32)]) {
    if !wanted(benchmark) {
        return;
    }
    // What was asked last has to come to rest.
    std::thread::sleep(Duration::from_millis(200));
    let used = || processes.iter().map(|(_, process)| processor_seconds(*process).unwrap_or(f64::NAN));
    let before: Vec<f64> = used().collect();
    std::thread::sleep(span);
    let sides = processes.iter().zip(used().zip(before)).map(|((name, _), (after, before))| {
        let percent = (after - before) / span.as_secs_f64() * 100.0;
        json!({ "name": name, "core_percent": percent, "bar_percent": 1.0, "met": percent < 1.0 })
    });
    println!("{}", json!({ "benchmark": benchmark, "sides": sides.collect::<Vec<Value>>() }));
}

/// Seconds of processor time that the process has used since it was started, with all its threads;
/// `None` where there is no such process. Counted by the kernel in ticks, mostly of 10 ms.
pub fn processor_seconds(process: u32) -> Option<f64> {
    let fields = fields(process)?;
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// The processes that `process` has started and that are still there.
pub fn children(process: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent = process.to_string();
    processes.filter(|child| fields(*child).is_some_and(|fields| fields.get(1) == Some(&parent))).collect()
}

/// The fields of `/proc/<process>/stat` behind the name, which may hold spaces: state, parent, ...
fn fields(process: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(String::from).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_busy_thread_costs_and_children_are_found() {
        let own = std::process::id();
        let before = processor_seconds(own).expect("this process");
        let started = Instant::now();
        while processor_seconds(own).expect("this process") < before + 0.05 {
            assert!(started.elapsed() < Duration::from_secs(60), "busy for a minute, and nothing was counted");
        }
        let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
        assert!(children(own).contains(&child.id()));
        child.kill().expect("the child ends");
        child.wait().expect("the child is reaped");
        assert_eq!(processor_seconds(child.id()), None);
    }
}
