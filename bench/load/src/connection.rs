// SPDX-License-Identifier: MIT OR Apache-2.0

//! A connection to the server: it sends bytes and reads one reply after the other, in RESP2 or RESP3.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply that takes longer never comes.
const LIMIT: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 1 << 16;

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Where in the buffer the next reply begins.
    start: usize,
}

#[derive(Debug, PartialEq)]
pub enum Reply<'a> {
    /// All that is none of the others.
    Done,
    /// 0 or null.
    Refused,
    /// A message of a channel, as it came.
    Message(&'a [u8]),
}

impl Connection {
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Self { stream, buffer: Vec::new(), start: 0 })
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next reply. An error of the server is an error here.
    pub fn read(&mut self) -> Result<Reply<'_>> {
        let end = loop {
            match end_of_reply(&self.buffer, self.start) {
                Some(end) => break end,
                None => self.fill()?,
            }
        };
        let reply = &self.buffer[self.start..end];
        self.start = end;
        match reply[0] {
            b'-' => Err(problem(reply)),
            b'>' => Ok(Reply::Message(reply)),
            b'_' => Ok(Reply::Refused),
            _ if matches!(reply, b":0\r\n" | b"$-1\r\n" | b"*-1\r\n") => Ok(Reply::Refused),
            _ => Ok(Reply::Done),
        }
    }

    /// The next reply, which must be that something was done.
    pub fn done(&mut self) -> Result<()> {
        match self.read()? {
            Reply::Done => Ok(()),
            other => Err(Error::other(format!("answered {other:?}"))),
        }
    }

    /// Whether a part of what has been received is still to be read.
    pub fn has_more(&self) -> bool {
        self.start < self.buffer.len()
    }

    fn fill(&mut self) -> Result<()> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let filled = self.buffer.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let got = self.stream.read(&mut self.buffer[filled..])?;
        self.buffer.truncate(filled + got);
        if got == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn problem(reply: &[u8]) -> Error {
    Error::other(String::from_utf8_lossy(reply).trim_end().to_owned())
}

/// Where the reply that begins at `start` ends, when it is there as a whole.
fn end_of_reply(buffer: &[u8], start: usize) -> Option<usize> {
    let line = buffer.get(start..)?.iter().position(|&byte| byte == b'\n')?;
    let end = start + line + 1;
    let length = || std::str::from_utf8(&buffer[start + 1..end - 2]).ok()?.parse::<i64>().ok();
    match buffer[start] {
        b'$' | b'=' => {
            let length = usize::try_from(length()?).map_or(0, |length| length + 2);
            (buffer.len() >= end + length).then_some(end + length)
        }
        kind @ (b'*' | b'>' | b'~' | b'%') => {
            let parts = length()?.max(0) * if kind == b'%' { 2 } else { 1 };
            (0..parts).try_fold(end, |at, _| end_of_reply(buffer, at))
        }
        _ => Some(end),
    }
}

#[cfg(test)]
mod tests {
    use super::end_of_reply;

    #[test]
    fn a_reply_ends_where_it_does_and_a_part_of_one_does_not() {
        let replies: [&[u8]; 8] = [
            b":17\r\n",
            b"+OK\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$3\r\n1 2\r\n",
            b"%1\r\n+a\r\n_\r\n",
        ];
        for reply in replies {
            let buffer = [b":0\r\n", reply, b"+next"].concat();
            assert_eq!(end_of_reply(&buffer, 4), Some(4 + reply.len()), "{}", reply.escape_ascii());
            for part in 1..reply.len() {
                assert_eq!(end_of_reply(&buffer[..4 + part], 4), None, "{}", reply[..part].escape_ascii());
            }
        }
    }
}
