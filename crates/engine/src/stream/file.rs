//! A stream in a file, written in one or several attempts.

use super::codec::{Decoder, ItemKind, MAGIC, RecordHeader, StreamHeader, StreamItem, Total};
use crate::codec::crc32c;
use crate::error::{Error, ErrorKind, Result, conflict, corrupt};
use std::io::{self, Read, Write};

/// Number of bytes read at a time.
const PIECE: usize = 1 << 20;

/// The usable part of a file with a stream that was cut short: the header and whole records, all
/// with right sums.
pub struct StreamPart {
    header: StreamHeader,
    position: u64,
    total: Total,
}

impl StreamPart {
    /// Reads a file as far as it is a valid stream. Returns `None` if the file lacks even the
    /// header, and [`ErrorKind::Corrupt`] or [`ErrorKind::Unsupported`] if it does not begin like a
    /// stream. After a power cut a file may end in zeros or garbage. It can't show blocks of an
    /// older, deleted stream instead, because journaling file systems prevent that.
    pub fn read(input: &mut dyn Read) -> Result<Option<StreamPart>> {
        let (mut decoder, mut piece) = (Decoder::new(), vec![0; PIECE]);
        let mut part: Option<StreamPart> = None;
        loop {
            let len = match input.read(&mut piece) {
                Ok(0) => return Ok(part),
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::io("read the existing part of the stream", e)),
            };
            if part.is_none() && decoder.is_empty() && piece[..len.min(MAGIC.len())].iter().all(|b| *b == 0) {
                return Ok(None);
            }
            decoder.push(&piece[..len]);
            loop {
                match (decoder.next(), &mut part) {
                    (Ok(None), _) => break,
                    (Ok(Some(StreamItem::Header(header))), _) => part = Some(StreamPart::begin(header)),
                    // The trailer is written again.
                    (Ok(Some(StreamItem::End)), _) => return Ok(part),
                    (Ok(Some(item)), Some(part)) => drop(part.add(&item)),
                    // After a power loss, a file that was not synced may hold anything.
                    (Err(_), Some(_)) => return Ok(part),
                    (Err(e), None) => return Err(e),
                    (Ok(Some(_)), None) => return Err(corrupt("read the stream: it has no header")),
                }
            }
        }
    }

    fn begin(header: StreamHeader) -> StreamPart {
        let mut total = Total::new();
        total.add(&header.encode());
        StreamPart { position: header.start, header, total }
    }

    /// Returns the header of the stream.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Returns the byte of the volume at which the missing part begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of bytes of the file that count. What follows them has to be cut off.
    pub fn bytes(&self) -> u64 {
        self.total.bytes
    }

    /// Adds a record, and returns its bytes.
    fn add(&mut self, item: &StreamItem) -> Vec<u8> {
        let bytes = match item {
            StreamItem::Data { offset, data } => {
                let length = data.len() as u64;
                let record =
                    RecordHeader { kind: ItemKind::Data, crc: crc32c(data), offset: *offset, length };
                self.position = offset + length;
                [&record.encode(), &data[..]].concat()
            }
            StreamItem::Zeros { offset, length } => {
                self.position = offset + length;
                RecordHeader { kind: ItemKind::Zeros, crc: 0, offset: *offset, length: *length }.encode()
            }
            StreamItem::Header(_) | StreamItem::End => Vec::new(),
        };
        self.total.add(&bytes);
        bytes
    }
}

/// Writes a stream to a file, or appends the missing rest to a part. Everything is verified on the
/// way. In the end the file has the header and the trailer of one stream.
pub struct StreamFile<W> {
    out: W,
    part: Option<StreamPart>,
    decoder: Decoder,
}

impl<W: Write> StreamFile<W> {
    /// Makes a writer. With `part`, nothing is written to `out` before the stream has proved to
    /// continue that part. Then what follows the part is written.
    pub fn new(out: W, part: Option<StreamPart>) -> StreamFile<W> {
        StreamFile { out, part, decoder: Decoder::new() }
    }

    /// Takes the next bytes of the stream, of any length. Returns [`ErrorKind::Conflict`] if the
    /// stream does not continue the part.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.decoder.push(bytes);
        while let Some(item) = self.decoder.next()? {
            let bytes = match (item, &mut self.part) {
                (StreamItem::Header(header), Some(part)) => {
                    goes_on(part, &header)?;
                    continue;
                }
                (StreamItem::Header(header), part) => {
                    let bytes = header.encode();
                    *part = Some(StreamPart::begin(header));
                    bytes
                }
                (StreamItem::End, Some(part)) => part.total.trailer(part.header.size).encode(),
                (item, Some(part)) => part.add(&item),
                (_, None) => return Err(corrupt("read the stream: it has no header")),
            };
            self.out.write_all(&bytes).map_err(|e| Error::io("write the stream", e))?;
        }
        Ok(())
    }

    /// Returns the part that is written so far.
    pub fn part(&self) -> Option<&StreamPart> {
        self.part.as_ref()
    }

    /// Returns the file, and the number of bytes of the whole stream. Returns
    /// [`ErrorKind::Corrupt`] if the end of the stream has not come.
    pub fn finish(self) -> Result<(W, u64)> {
        match self.part {
            Some(part) if self.decoder.is_complete() => {
                Ok((self.out, part.bytes() + super::codec::RECORD as u64))
            }
            _ => Err(corrupt("write the stream: it was interrupted")),
        }
    }
}

/// Checks that the stream of `header` has what `part` lacks. Names may have changed meanwhile.
fn goes_on(part: &StreamPart, header: &StreamHeader) -> Result<()> {
    let what = |h: &StreamHeader| {
        (h.to.content, h.from.as_ref().map(|from| from.content), h.size, h.block_size, h.chunk_size)
    };
    if what(&part.header) != what(header) {
        return Err(conflict("continue the stream: the file holds a part of another stream"));
    }
    if header.start != part.position {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("continue the stream at byte {}: it begins at byte {}", part.position, header.start),
        ));
    }
    Ok(())
}
