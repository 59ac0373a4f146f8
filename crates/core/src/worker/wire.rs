//! How operations and mail look as records of a ring.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::executor::backend::{BufferDesc, Frame};
use crate::operation::{Access, LibraryId};

const SIDE: u8 = u8::MAX;
const NO_REPLY: u64 = u32::MAX as u64;

fn pack(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

/// Writes a frame's fixed part. The record is: ticket; library, code, stream, counts; seq; reply;
/// waits; buffers; parameters.
#[derive(Debug)]
pub(crate) struct FrameHeader {
    pub ticket: u64,
    pub stream: Option<u8>,
    pub seq: u64,
    pub library: LibraryId,
    pub code: u16,
    pub reply_at: Option<u32>,
}

/// Appends a frame to `out` (which is cleared first).
pub(crate) fn encode_frame(
    out: &mut Vec<u64>,
    header: &FrameHeader,
    waits: &[(u8, u64)],
    buffers: impl ExactSizeIterator<Item = BufferDesc>,
    params: &[u8],
) {
    out.clear();
    let code = header.code.to_le_bytes();
    let buffer_count = (buffers.len() as u16).to_le_bytes();
    out.push(header.ticket);
    out.push(pack([
        header.library.index(),
        header.stream.unwrap_or(SIDE),
        code[0],
        code[1],
        waits.len() as u8,
        buffer_count[0],
        buffer_count[1],
        0,
    ]));
    out.push(header.seq);
    out.push(header.reply_at.map_or(NO_REPLY, u64::from));
    out.push(params.len() as u64);
    for (stream, seq) in waits {
        out.extend([u64::from(*stream), *seq]);
    }
    for buffer in buffers {
        let flags = pack([buffer.access as u8, buffer.dtype as u8, u8::from(buffer.whole), 0, 0, 0, 0, 0]);
        out.extend([buffer.id, flags | u64::from(buffer.segment) << 32, buffer.offset, buffer.bytes]);
    }
    push_bytes(out, params);
}

fn push_bytes(out: &mut Vec<u64>, bytes: &[u8]) {
    let mut chunks = bytes.chunks_exact(8);
    out.extend(chunks.by_ref().map(|chunk| pack(chunk.try_into().expect("eight bytes"))));
    if !chunks.remainder().is_empty() {
        let mut last = [0; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        out.push(pack(last));
    }
}

fn read_bytes(words: &[u64], len: usize) -> Option<SmallVec<[u8; 96]>> {
    let words = words.get(..len.div_ceil(8))?;
    let mut bytes = SmallVec::with_capacity(words.len() * 8);
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    Some(bytes)
}

/// Reads a frame back.
pub(crate) fn decode_frame(record: &[u64]) -> Result<Frame> {
    decode(record).ok_or_else(|| GpuError::Protocol {
        side: "front".into(),
        reason: format!("an operation record of {} words does not decode", record.len()),
    })
}

fn decode(record: &[u64]) -> Option<Frame> {
    let [ticket, kind, seq, reply, params_len, rest @ ..] = record else {
        return None;
    };
    let [library, stream, code_low, code_high, waits, buffers_low, buffers_high, _] = kind.to_le_bytes();
    let buffers = u16::from_le_bytes([buffers_low, buffers_high]);
    let (wait_words, rest) = rest.split_at_checked(2 * waits as usize)?;
    let (buffer_words, rest) = rest.split_at_checked(4 * usize::from(buffers))?;
    let mut descs = SmallVec::new();
    for words in buffer_words.chunks_exact(4) {
        let [access, dtype, whole, ..] = words[1].to_le_bytes();
        descs.push(BufferDesc {
            id: words[0],
            segment: (words[1] >> 32) as u32,
            offset: words[2],
            bytes: words[3],
            access: Access::from_u8(access)?,
            dtype: *DType::ALL.get(dtype as usize)?,
            whole: whole != 0,
        });
    }
    Some(Frame {
        ticket: *ticket,
        stream: (stream != SIDE).then_some(stream),
        seq: *seq,
        library: LibraryId::from_index(library)?,
        code: u16::from_le_bytes([code_low, code_high]),
        reply_at: (*reply != NO_REPLY).then_some(*reply as u32),
        waits: wait_words.chunks_exact(2).map(|pair| (pair[0] as u8, pair[1])).collect(),
        buffers: descs,
        params: read_bytes(rest, usize::try_from(*params_len).ok()?)?,
    })
}

/// What the worker tells the front about one operation, apart from the counters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Mail {
    /// An operation failed and the worker goes on. Sent before its counter is written.
    Failed { ticket: u64, error: GpuError },
    /// A side-lane operation finished.
    Done { ticket: u64, reply: Vec<u8> },
}

/// Mail as a record: the byte length, then the bytes.
pub(crate) fn encode_mail(mail: &Mail) -> Result<Vec<u64>> {
    let bytes = postcard::to_allocvec(mail)
        .map_err(|e| GpuError::Protocol { side: "worker".into(), reason: format!("mail does not encode: {e}") })?;
    let mut record = vec![bytes.len() as u64];
    push_bytes(&mut record, &bytes);
    Ok(record)
}

/// Reads mail back; the record is untrusted.
pub(crate) fn decode_mail(record: &[u64]) -> Result<Mail> {
    let violation = |reason: String| GpuError::Protocol { side: "worker".into(), reason };
    let [len, words @ ..] = record else {
        return Err(violation("an empty mail record".into()));
    };
    let bytes = usize::try_from(*len).ok().filter(|len| len.div_ceil(8) <= words.len());
    let bytes = bytes.and_then(|len| read_bytes(words, len));
    let bytes = bytes.ok_or_else(|| violation(format!("mail claims {len} bytes in {} words", words.len())))?;
    postcard::from_bytes(&bytes).map_err(|e| violation(format!("mail does not decode: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_ring_and_garbage_does_not_decode() {
        let header = FrameHeader {
            ticket: 7,
            stream: Some(3),
            seq: 99,
            library: LibraryId::CORE,
            code: 513,
            reply_at: Some(8192),
        };
        let desc = BufferDesc {
            id: 5,
            segment: 2,
            offset: 256,
            bytes: 1024,
            access: Access::ReadWrite,
            dtype: DType::BF16,
            whole: true,
        };
        let mut record = Vec::new();
        encode_frame(&mut record, &header, &[(1, 44)], [desc].into_iter(), b"parameters!");
        let frame = decode_frame(&record).expect("sound");
        assert_eq!((frame.ticket, frame.stream, frame.seq, frame.code), (7, Some(3), 99, 513));
        assert_eq!(frame.reply_at, Some(8192));
        assert_eq!(frame.waits.as_slice(), [(1, 44)]);
        assert_eq!(frame.buffers.as_slice(), [desc]);
        assert_eq!(frame.params.as_slice(), b"parameters!");
        for cut in 0..record.len() {
            assert!(decode_frame(&record[..cut]).is_err());
        }
    }

    #[test]
    fn mail_survives_and_lies_about_its_length_are_refused() {
        let mut record = encode_mail(&Mail::Done { ticket: 1, reply: vec![1, 2, 3] }).expect("plain data");
        assert!(matches!(decode_mail(&record), Ok(Mail::Done { ticket: 1, reply }) if reply == [1, 2, 3]));
        record[0] = u64::MAX;
        assert!(decode_mail(&record).is_err());
        assert!(decode_mail(&[]).is_err());
    }
}
