//! The front's end of a worker: its process, its channel, its page.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use tokio::sync::oneshot;

use crate::error::{GpuError, Result};
use crate::executor::backend::{StartConfig, WorkerInfo};
use crate::memory::Space;

use super::channel::{Channel, FromWorker, RawHandles, Received, ToWorker};
use super::page::Page;
use super::{WORKER_ENV, run};

/// How to start a worker.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub start: StartConfig,
    /// The executable for worker processes; `None`: find one.
    pub executable: Option<PathBuf>,
    pub timeout: Duration,
}

/// The answer to a control request: bytes or the segment's descriptor.
#[derive(Debug)]
pub(crate) enum Answer {
    Segment(OwnedFd),
    Memory(u64, u64),
}

/// A running worker.
#[derive(Debug)]
pub(crate) struct Link {
    pub id: u64,
    pub page: Arc<Page>,
    pub channel: Channel,
    pub info: WorkerInfo,
    /// The context and its streams, where they are in this process.
    pub raw: Option<RawHandles>,
    pub in_process: bool,
    pid: Option<u32>,
    child: Mutex<Option<Child>>,
    requests: Mutex<HashMap<u64, oneshot::Sender<Result<Answer>>>>,
    next_request: AtomicU64,
}

static NEXT_LINK: AtomicU64 = AtomicU64::new(1);

impl Link {
    /// Starts a worker and waits until its executor is up. Blocks for as long as that takes.
    pub fn launch(launch: &Launch) -> Result<Link> {
        let (page, page_fd) = Page::create()?;
        let (channel, theirs) = Channel::pair()?;
        let in_process = launch.start.in_process;
        let mut child = if in_process {
            std::thread::Builder::new()
                .name("atomr-executor".into())
                .spawn(move || {
                    if let Err(error) = run::run(Channel::from_fd(theirs)) {
                        tracing::warn!(%error, "the executor thread ended");
                    }
                })
                .map_err(|e| GpuError::io("starting the executor thread", e))?;
            None
        } else {
            Some(spawn_process(launch.executable.as_deref(), theirs)?)
        };
        let pid = child.as_ref().map(Child::id);
        let started = channel
            .send(&ToWorker::Start(launch.start.clone()), Some(page_fd.as_fd()))
            .and_then(|()| wait_ready(&channel, launch.timeout));
        let (info, raw) = match started {
            Ok(started) => started,
            Err(error) => {
                if let Some(child) = child.as_mut() {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                return Err(error);
            }
        };
        Ok(Link {
            id: NEXT_LINK.fetch_add(1, Ordering::Relaxed),
            page: Arc::new(page),
            channel,
            info,
            raw,
            in_process,
            pid,
            child: Mutex::new(child),
            requests: Mutex::default(),
            next_request: AtomicU64::new(1),
        })
    }

    /// The process, where there is one.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Wakes the enqueue thread after a push.
    pub fn wake(&self) {
        run::wake(self.page.sleeping());
    }

    /// Asks for a device segment.
    pub fn create_segment(&self, id: u32, bytes: u64) -> Result<oneshot::Receiver<Result<Answer>>> {
        self.request(|request| ToWorker::CreateSegment { request, id, bytes })
    }

    /// Asks for free and total bytes.
    pub fn query_memory(&self) -> Result<oneshot::Receiver<Result<Answer>>> {
        self.request(|request| ToWorker::QueryMemory { request })
    }

    fn request(&self, message: impl FnOnce(u64) -> ToWorker) -> Result<oneshot::Receiver<Result<Answer>>> {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        self.requests.lock().insert(id, answer);
        self.channel.send(&message(id), None)?;
        Ok(receiver)
    }

    /// Hands a segment over.
    pub fn map_segment(&self, space: Space, id: u32, bytes: u64, fd: &OwnedFd) -> Result<()> {
        self.channel.send(&ToWorker::MapSegment { id, space, bytes }, Some(fd.as_fd()))
    }

    /// Delivers an answer that came over the channel.
    pub fn deliver(&self, message: FromWorker, fd: Option<OwnedFd>) {
        let (request, answer) = match message {
            FromWorker::SegmentCreated { request, result } => {
                let missing =
                    || GpuError::Protocol { side: "worker".into(), reason: "a segment without descriptor".into() };
                (request, result.and_then(|()| fd.ok_or_else(missing)).map(Answer::Segment))
            }
            FromWorker::Memory { request, result } => {
                (request, result.map(|(free, total)| Answer::Memory(free, total)))
            }
            FromWorker::MapFailed { id, error } => {
                return tracing::error!(segment = id, %error, "segment not mapped");
            }
            FromWorker::Ready { .. } | FromWorker::StartFailed(_) | FromWorker::Dying(_) => return,
        };
        if let Some(sender) = self.requests.lock().remove(&request) {
            // Whoever asked may have been dropped.
            let _ = sender.send(answer);
        }
    }

    /// Nobody will answer any more: who asked learns that by its closed channel.
    pub fn abandon_requests(&self) {
        self.requests.lock().clear();
    }

    /// Kills the process; its end is seen on the channel.
    pub fn kill(&self) {
        if let Some(child) = self.child.lock().as_mut() {
            // It may have ended by itself.
            let _ = child.kill();
        }
    }

    /// How the process ended, if that is known within `patience`.
    pub fn exit_status(&self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.child.lock().as_mut()?.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_micros(50)),
                _ => return None,
            }
        }
    }

    /// Gives the process time to end by itself, on a thread of its own, then kills it.
    pub fn reap_after(self: Arc<Self>, patience: Duration) {
        let reap = move || {
            self.exit_status(patience);
            self.reap();
        };
        // Without a thread the last handle kills it.
        drop(std::thread::Builder::new().name("atomr-reaper".into()).spawn(reap));
    }

    /// Kills and reaps the process; blocks until it is gone.
    pub fn reap(&self) {
        let child = self.child.lock().take();
        if let Some(mut child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reap();
    }
}

/// What ended a worker: its own last words, else how its process ended.
pub(crate) fn exit_error(link: &Link, killed_for: Option<&str>) -> GpuError {
    let last_words = link.page.last_words();
    if let Some(error) = last_words.as_deref().and_then(|bytes| postcard::from_bytes::<GpuError>(bytes).ok()) {
        return error;
    }
    let exit = match (killed_for, link.exit_status(Duration::from_millis(1))) {
        (Some(reason), _) => reason.to_string(),
        (None, Some(status)) => describe(status),
        (None, None) if link.in_process => "the executor thread ended".into(),
        (None, None) => "its control channel closed".into(),
    };
    let last_words = last_words.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    GpuError::WorkerLost { exit, last_words }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exited with code {code}"),
        (None, None) => "ended".into(),
    }
}

fn spawn_process(executable: Option<&Path>, socket: OwnedFd) -> Result<Child> {
    let path = find_executable(executable)?;
    Command::new(&path)
        .env(WORKER_ENV, "1")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| GpuError::WorkerStart { reason: format!("{}: {e}", path.display()) })
}

/// The worker executable: the one configured, this program if it called `worker::init`, or
/// `atomr-cuda-worker` beside it.
fn find_executable(configured: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = configured {
        return Ok(path.to_path_buf());
    }
    let current = std::env::current_exe().map_err(|e| GpuError::io("finding this executable", e))?;
    if super::initialised() {
        return Ok(current);
    }
    let folders = current.ancestors().skip(1).take(2);
    let candidates: Vec<PathBuf> = folders.map(|folder| folder.join("atomr-cuda-worker")).collect();
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| GpuError::WorkerStart {
        reason: format!(
            "call `atomr_cuda::worker::init()` first thing in `main`, or name a worker executable; none at {}",
            candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    })
}

fn wait_ready(channel: &Channel, timeout: Duration) -> Result<(WorkerInfo, Option<RawHandles>)> {
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GpuError::WorkerStart { reason: format!("it was not ready within {timeout:?}") });
        }
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(GpuError::io("waiting for the worker", e)),
        }
        match channel.receive::<FromWorker>(false)? {
            Received::Message(FromWorker::Ready { info, raw }, _) => return Ok((info, raw)),
            Received::Message(FromWorker::StartFailed(error), _) => return Err(error),
            Received::Closed => {
                let reason = "it ended before it was ready; does its `main` call `atomr_cuda::worker::init()`?".into();
                return Err(GpuError::WorkerStart { reason });
            }
            Received::Message(..) | Received::Nothing => {}
        }
    }
}
