//! Results on disk, shared by every process of a user.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::Compiled;
use super::key::Key;

const SUFFIX: &str = "program";
const DIGEST_BYTES: usize = 32;

/// A folder of results, one file each. It makes things faster, never wrong: whatever cannot be read
/// or written is as if it were not there.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    folder: PathBuf,
    limit: u64,
}

impl Disk {
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Disk { folder, limit }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{key}.{SUFFIX}"))
    }

    /// The entry, if it is there and sound. A damaged one is removed.
    pub fn get(&self, key: &Key) -> Option<Compiled> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        match decode(&bytes) {
            Some(compiled) => {
                // The time of last use decides what is removed first.
                let _ =
                    fs::File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
                Some(compiled)
            }
            None => {
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps an entry, and removes the ones that were not used for longest beyond the limit.
    pub fn put(&self, key: &Key, compiled: &Compiled) {
        // A full or read-only disk costs time at the next start, and nothing else.
        let _ = self.write(key, compiled).and_then(|()| self.trim(&self.path(key)));
    }

    fn write(&self, key: &Key, compiled: &Compiled) -> io::Result<()> {
        let payload = postcard::to_allocvec(compiled).map_err(io::Error::other)?;
        fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::Builder::new().prefix(".writing-").tempfile_in(&self.folder)?;
        file.write_all(&Sha256::digest(&payload))?;
        file.write_all(&payload)?;
        file.persist(self.path(key)).map_err(|error| error.error)?;
        Ok(())
    }

    fn trim(&self, newest: &Path) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_ours = entry.path().extension().is_some_and(|suffix| suffix == SUFFIX);
            // Another process may be removing the same ones.
            if let (true, Ok(metadata)) = (is_ours, entry.metadata()) {
                entries.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        entries.sort_unstable();
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in entries.iter().filter(|(_, _, path)| path != newest) {
            if total <= self.limit {
                break;
            }
            let _ = fs::remove_file(path);
            total -= bytes;
        }
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Option<Compiled> {
    let (digest, payload) = bytes.split_at_checked(DIGEST_BYTES)?;
    if Sha256::digest(payload).as_slice() != digest {
        return None;
    }
    postcard::from_bytes(payload).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::compiler::{Architecture, Source};

    fn key(name: &str) -> Key {
        Key::new(&Source::new(name, "code"), Architecture::of(9, 0).unwrap(), (13, 0), None).unwrap()
    }

    fn compiled(bytes: usize) -> Compiled {
        Compiled {
            cubin: vec![7; bytes],
            lowered: vec![("k<int>".into(), "_Z1k".into())],
            log: String::new(),
            architecture: Architecture::of(9, 0).unwrap(),
            resources: Vec::new(),
            took: Duration::from_millis(3),
            from_cache: false,
        }
    }

    #[test]
    fn entries_come_back_and_damaged_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path().join("new/folder"), 1 << 20);
        assert_eq!(disk.get(&key("a")), None);
        disk.put(&key("a"), &compiled(1000));
        assert_eq!(disk.get(&key("a")), Some(compiled(1000)));
        let path = disk.path(&key("a"));
        let sound = fs::read(&path).unwrap();
        for damaged in [&sound[..0], &sound[..20], &sound[..sound.len() - 1]] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(disk.get(&key("a")), None);
            assert!(!path.exists());
        }
        let mut flipped = sound.clone();
        flipped[500] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert_eq!(disk.get(&key("a")), None);
        disk.put(&key("a"), &compiled(10));
        assert_eq!(disk.get(&key("a")), Some(compiled(10)));
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(folder.path().into(), 3500);
        for (age, name) in [(40, "a"), (30, "b"), (20, "c")] {
            disk.put(&key(name), &compiled(1000));
            let file = fs::File::options().append(true).open(disk.path(&key(name))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        assert!(disk.get(&key("a")).is_some(), "used now");
        disk.put(&key("d"), &compiled(1000));
        let there = ["a", "b", "c", "d"].map(|name| disk.path(&key(name)).exists());
        assert_eq!(there, [true, false, true, true]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let disk = Disk::new(file.path().join("inside/a/file"), 1 << 20);
        disk.put(&key("a"), &compiled(10));
        assert_eq!(disk.get(&key("a")), None);
    }
}
