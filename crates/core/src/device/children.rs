//! The library actors of a context, found by type.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use dashmap::DashMap;

/// A map by type that all its clones share. Libraries put their actors here; so may users.
#[derive(Clone, Default)]
pub struct KernelChildren {
    extras: Arc<DashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

impl KernelChildren {
    /// Registers `value` under its type; an earlier value of that type is replaced.
    pub fn register_extra<T: Clone + Send + Sync + 'static>(&self, value: T) {
        self.extras.insert(TypeId::of::<T>(), Box::new(value));
    }

    /// The value registered under `T`.
    pub fn extra<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.extras.get(&TypeId::of::<T>()).and_then(|value| value.downcast_ref::<T>().cloned())
    }

    /// How many values are registered.
    pub fn extras_len(&self) -> usize {
        self.extras.len()
    }
}

impl fmt::Debug for KernelChildren {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelChildren({} extras)", self.extras_len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extras_register_retrieve_overwrite_and_share() {
        let children = KernelChildren::default();
        let snapshot = children.clone();
        assert_eq!(children.extra::<u32>(), None);
        children.register_extra(1u32);
        children.register_extra("name");
        assert_eq!(snapshot.extra::<u32>(), Some(1));
        snapshot.register_extra(2u32);
        assert_eq!(children.extra::<u32>(), Some(2));
        assert_eq!(children.extra::<&str>(), Some("name"));
        assert_eq!(children.extras_len(), 2);
    }
}
