//! Graphs: a list of operations of any library, launched as one.
//!
//! ```
//! # use atomr_core::prelude::{ActorSystem, Config};
//! # use atomr_cuda_core::{Device, DeviceConfig};
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let system = ActorSystem::create("app", Config::reference()).await?;
//! let device = Device::open(&system, DeviceConfig::host(0)).await?;
//! let (a, b) = (device.alloc::<f32>(4).await?, device.alloc::<f32>(4).await?);
//!
//! let mut recording = device.record();
//! let fill = recording.add(device.fill(&a, 1.0))?;
//! recording.add(device.copy(&a, &b))?;
//! let mut graph = recording.finish()?;
//! graph.launch().await?;
//! assert_eq!(device.download(&b).await?, [1.0; 4]);
//!
//! graph.set(fill, device.fill(&a, 2.0))?; // other parameters, the same graph
//! graph.launch().await?;
//! assert_eq!(device.download(&b).await?, [2.0; 4]);
//! # device.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! On a GPU the list is captured once into a CUDA graph, and launched with one call of the driver
//! from then on; on the host it is a plain sequence. Because operations are data, a graph survives a
//! fail-over: the next worker captures it again.

pub(crate) mod record;

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::device::{Call, Device};
use crate::dtype::{CudaDtype, DType};
use crate::error::{GpuError, Result};
use crate::memory::{Blob, Buffer, GpuRef, View};
use crate::operation::{Access, Argument, Arguments, BufferShape, Lane, LibraryId, Operation};

use record::{Recorded, RecordedArgument};

static NEXT_GRAPH: AtomicU64 = AtomicU64::new(1);

/// The place of an operation in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeId(usize);

#[derive(Clone)]
struct Node {
    name: &'static str,
    library: LibraryId,
    code: u16,
    params: Vec<u8>,
    arguments: Vec<(View, Access)>,
}

/// A list that is being recorded. Made by [`Device::record`].
pub struct Recording {
    device: Device,
    nodes: Vec<Node>,
}

/// A recorded list of operations, launched as one. Clones are graphs of their own.
pub struct Graph {
    device: Device,
    id: u64,
    version: u64,
    nodes: Vec<Node>,
    encoded: Blob,
    /// The buffers that it uses, each once, with what the whole list does to them.
    buffers: Vec<(View, Access)>,
}

impl Device {
    /// Begins to record a graph.
    pub fn record(&self) -> Recording {
        Recording { device: self.clone(), nodes: Vec::new() }
    }
}

impl Recording {
    /// Adds an operation behind those before it. It is checked now, and nothing runs.
    ///
    /// # Errors
    /// As [`Call::submit`]; also for operations that return a value or run beside the streams: those
    /// cannot be part of a graph.
    pub fn add<O: Operation>(&mut self, call: Call<O>) -> Result<NodeId> {
        self.nodes.push(node(&self.device, call)?);
        Ok(NodeId(self.nodes.len() - 1))
    }

    /// Adds the operations of another graph of the same device, as they are now; the places of the
    /// new ones.
    ///
    /// # Errors
    /// [`GpuError::WrongDevice`].
    pub fn add_graph(&mut self, graph: &Graph) -> Result<Vec<NodeId>> {
        let (here, there) = (self.device.label(), graph.device.label());
        if !self.device.is_same(&graph.device) {
            return Err(GpuError::WrongDevice {
                operation: GraphLaunch::NAME.into(),
                argument: "graph".into(),
                expected: here,
                found: there,
            });
        }
        let first = self.nodes.len();
        self.nodes.extend(graph.nodes.iter().cloned());
        Ok((first..self.nodes.len()).map(NodeId).collect())
    }

    /// The graph.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] without any operation, or with more than 60,000 buffers.
    pub fn finish(self) -> Result<Graph> {
        let (encoded, buffers) = encode(&self.device, &self.nodes)?;
        let id = NEXT_GRAPH.fetch_add(1, Ordering::Relaxed);
        Ok(Graph { device: self.device, id, version: 0, nodes: self.nodes, encoded, buffers })
    }
}

impl Graph {
    /// Operations in it.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has no operation; a graph always has one.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Runs the whole list, in the order of submission like any other operation
    /// (`cuGraphLaunch`).
    ///
    /// # Errors
    /// [`GpuError::Graph`] names the operation that could not be captured. What the list writes is
    /// stale after a fault, as after any operation.
    pub fn launch(&self) -> Call<GraphLaunch> {
        let launch = GraphLaunch {
            id: self.id,
            version: self.version,
            accesses: self.buffers.iter().map(|(_, access)| *access).collect(),
        };
        let views = self.buffers.iter().map(|(view, _)| view.clone());
        Call::new(&self.device, launch, std::iter::once(self.encoded.view()).chain(views))
    }

    /// Gives a place other parameters and other buffers; the operation stays of its kind. The next
    /// launch updates the captured graph where the driver can (`cuGraphExecUpdate`), without
    /// instantiating it again.
    ///
    /// # Errors
    /// As [`Recording::add`]; [`GpuError::InvalidArgument`] for another kind of operation.
    pub fn set<O: Operation>(&mut self, place: NodeId, call: Call<O>) -> Result<()> {
        let Some(old) = self.nodes.get(place.0) else {
            let reason = format!("{} of {} operations", place.0, self.nodes.len());
            return Err(GpuError::invalid(GraphLaunch::NAME, "place", reason));
        };
        if (old.library, old.code) != (O::LIBRARY, O::CODE) {
            let reason = format!("the operation there is `{}`, not `{}`", old.name, O::NAME);
            return Err(GpuError::invalid(GraphLaunch::NAME, "place", reason));
        }
        let mut nodes = self.nodes.clone();
        nodes[place.0] = node(&self.device, call)?;
        self.change(nodes)
    }

    /// Puts `new` wherever `old` is used. Both have the same length.
    ///
    /// # Errors
    /// [`GpuError::ShapeMismatch`], [`GpuError::WrongDevice`], and [`GpuError::Aliased`] where an
    /// operation would then have a buffer twice.
    pub fn replace<T: CudaDtype>(&mut self, old: &GpuRef<T>, new: &GpuRef<T>) -> Result<()> {
        let (old, new) = (old.view(), new.view());
        if old.bytes != new.bytes || !old.is_whole() || !new.is_whole() {
            return Err(GpuError::ShapeMismatch {
                operation: GraphLaunch::NAME.into(),
                argument: "new".into(),
                needed: old.len(),
                found: new.len(),
            });
        }
        if new.buffer.memory().token != old.buffer.memory().token {
            return Err(GpuError::WrongDevice {
                operation: GraphLaunch::NAME.into(),
                argument: "new".into(),
                expected: old.buffer.memory().label.clone(),
                found: new.buffer.memory().label.clone(),
            });
        }
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            if !node.arguments.iter().any(|(view, _)| Arc::ptr_eq(&view.buffer, &old.buffer)) {
                continue;
            }
            if node.arguments.iter().any(|(view, _)| Arc::ptr_eq(&view.buffer, &new.buffer)) {
                return Err(GpuError::Aliased {
                    operation: node.name.into(),
                    output: "new".into(),
                    other: "one of its buffers".into(),
                });
            }
            for (view, _) in node.arguments.iter_mut().filter(|(view, _)| Arc::ptr_eq(&view.buffer, &old.buffer)) {
                view.buffer = new.buffer.clone();
            }
        }
        self.change(nodes)
    }

    fn change(&mut self, nodes: Vec<Node>) -> Result<()> {
        (self.encoded, self.buffers) = encode(&self.device, &nodes)?;
        self.nodes = nodes;
        self.version += 1;
        Ok(())
    }

    /// The list as a graph in the DOT language: one box an operation, an arrow where one has to wait
    /// for another because of a buffer.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph operations {\n    node [shape=box];\n");
        let id = |view: &View| view.buffer.id;
        for (at, node) in self.nodes.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = writeln!(dot, "    n{at} [label=\"{at}: {}\"];", node.name);
            let mut before: Vec<(usize, u64)> = Vec::new();
            for (view, access) in &node.arguments {
                let uses = |earlier: &Node| {
                    let mut same = earlier.arguments.iter().filter(|(other, _)| id(other) == id(view));
                    same.any(|(_, other)| other.writes() || access.writes())
                };
                if let Some(last) = (0..at).rev().find(|earlier| uses(&self.nodes[*earlier])) {
                    before.push((last, id(view)));
                }
            }
            before.sort_unstable();
            before.dedup_by_key(|(earlier, _)| *earlier);
            for (earlier, buffer) in before {
                let _ = writeln!(dot, "    n{earlier} -> n{at} [label=\"buffer {buffer}\"];");
            }
        }
        dot.push_str("}\n");
        dot
    }
}

impl Clone for Graph {
    fn clone(&self) -> Self {
        Graph {
            device: self.device.clone(),
            id: NEXT_GRAPH.fetch_add(1, Ordering::Relaxed),
            version: self.version,
            nodes: self.nodes.clone(),
            encoded: self.encoded.clone(),
            buffers: self.buffers.clone(),
        }
    }
}

fn node<O: Operation>(device: &Device, call: Call<O>) -> Result<Node> {
    if O::LANE == Lane::Side || call.operation.reply_bytes() > 0 {
        let reason = "it returns a value or runs beside the streams; a graph holds neither";
        return Err(GpuError::invalid(O::NAME, "graph", reason));
    }
    let Call { operation, buffers, .. } = call;
    let arguments = device.state.front.check(&operation, buffers)?;
    let params = postcard::to_allocvec(&operation)
        .map_err(|e| GpuError::invalid(O::NAME, "parameters", format!("they do not serialise: {e}")))?;
    Ok(Node { name: O::NAME, library: O::LIBRARY, code: O::CODE, params, arguments: arguments.into_vec() })
}

/// The list as bytes, and the buffers that it names.
fn encode(device: &Device, nodes: &[Node]) -> Result<(Blob, Vec<(View, Access)>)> {
    let mut buffers: Vec<(View, Access)> = Vec::new();
    let mut recorded = Vec::new();
    for node in nodes {
        let arguments = node.arguments.iter().map(|(view, access)| RecordedArgument {
            buffer: place(&mut buffers, view, *access),
            offset: view.offset,
            bytes: view.bytes,
            access: *access,
            dtype: view.dtype(),
            whole: view.is_whole(),
        });
        let arguments = arguments.collect();
        recorded.push(Recorded { library: node.library, code: node.code, params: node.params.clone(), arguments });
    }
    if recorded.is_empty() || buffers.len() > 60_000 {
        let reason = format!("{} operations on {} buffers", recorded.len(), buffers.len());
        return Err(GpuError::invalid(GraphLaunch::NAME, "nodes", reason));
    }
    Ok((device.blob(&record::encode(&recorded)?)?, buffers))
}

/// The position of a buffer among those of the graph, whose use of it is noted.
fn place(buffers: &mut Vec<(View, Access)>, view: &View, access: Access) -> u32 {
    let overwritten = access == Access::Write && view.is_whole();
    let same = |known: &Arc<Buffer>| Arc::ptr_eq(known, &view.buffer);
    if let Some(at) = buffers.iter().position(|(known, _)| same(&known.buffer)) {
        // Overwritten first, it does not matter what was there, whatever comes later.
        if buffers[at].1 == Access::Read && access.writes() {
            buffers[at].1 = Access::ReadWrite;
        }
        return at as u32;
    }
    let mut whole = View::new(view.buffer.clone(), DType::U8, view.buffer.bytes);
    whole.frozen = view.frozen;
    let use_of_whole = match (overwritten, access.writes()) {
        (true, _) => Access::Write,
        (false, true) => Access::ReadWrite,
        (false, false) => Access::Read,
    };
    buffers.push((whole, use_of_whole));
    buffers.len() as u32 - 1
}

/// One run of a graph. Made by [`Graph::launch`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GraphLaunch {
    pub(crate) id: u64,
    pub(crate) version: u64,
    accesses: Vec<Access>,
}

impl GraphLaunch {
    pub(crate) const CODE: u16 = 3;
}

impl Operation for GraphLaunch {
    type Output = ();
    const NAME: &'static str = "core.graph";
    const LIBRARY: LibraryId = LibraryId::CORE;
    const CODE: u16 = GraphLaunch::CODE;
    const REHEARSE: bool = false;

    fn arguments(&self) -> Arguments {
        let buffers = self.accesses.iter().map(|access| Argument { name: "buffer", access: *access });
        std::iter::once(Argument::read("graph")).chain(buffers).collect()
    }

    fn check(&self, _buffers: &[BufferShape]) -> Result<()> {
        // Each operation was checked when it was recorded.
        Ok(())
    }

    fn output(self, _reply: &[u8]) -> Result<()> {
        Ok(())
    }
}
