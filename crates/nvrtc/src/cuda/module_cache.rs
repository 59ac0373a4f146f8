//! What is loaded in a context, at most so much of it.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;

use atomr_cuda_core::Result;
use atomr_cuda_core::executor::cuda::check_driver;
use cudarc::driver::sys::{self, CUstream};
use lru::LruCache;
use parking_lot::Mutex;

/// Loaded modules, or what was made of them, by key. Beyond its capacity the one that was not used
/// for longest is unloaded, when the streams it was used on have finished with it. Clones share it.
pub struct ModuleCache<K, V> {
    entries: Arc<Mutex<LruCache<K, Entry<V>>>>,
}

struct Entry<V> {
    value: V,
    /// The streams it was used on, as addresses.
    streams: Vec<usize>,
}

impl<K, V> Clone for ModuleCache<K, V> {
    fn clone(&self) -> Self {
        ModuleCache { entries: self.entries.clone() }
    }
}

impl<K: Hash + Eq, V> ModuleCache<K, V> {
    /// Keeps up to `capacity` (at least one).
    pub fn new(capacity: usize) -> Self {
        let capacity = NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN);
        ModuleCache { entries: Arc::new(Mutex::new(LruCache::new(capacity))) }
    }

    /// Runs `work`, which may launch on `stream`, with the entry; `None` if it is not there. Nothing
    /// is unloaded meanwhile.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn with<R>(&self, key: &K, stream: CUstream, work: impl FnOnce(&V) -> Result<R>) -> Result<Option<R>> {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(key) else { return Ok(None) };
        if !entry.streams.contains(&(stream as usize)) {
            entry.streams.push(stream as usize);
        }
        work(&entry.value).map(Some)
    }

    /// Adds an entry; call it from a side task. What has to go waits for its streams here.
    ///
    /// # Errors
    /// The driver's answer when waiting.
    pub fn insert(&self, key: K, value: V) -> Result<()> {
        let evicted = self.entries.lock().push(key, Entry { value, streams: Vec::new() });
        let Some((_, entry)) = evicted else { return Ok(()) };
        for stream in &entry.streams {
            // SAFETY: the streams live as long as the executor, which this runs in.
            check_driver("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(*stream as CUstream) })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_until_others_push_them_out() {
        let cache = ModuleCache::<u32, &str>::new(2);
        let find = |key: u32| cache.entries.lock().peek(&key).map(|entry| entry.value);
        cache.insert(1, "one").unwrap();
        cache.insert(2, "two").unwrap();
        cache.insert(3, "three").unwrap();
        assert_eq!([1, 2, 3].map(find), [None, Some("two"), Some("three")]);
        assert_eq!(cache.with(&9, std::ptr::null_mut(), |_| Ok(())), Ok(None));
        assert_eq!(cache.with(&2, std::ptr::null_mut(), |value| Ok(*value)), Ok(Some("two")));
    }
}
