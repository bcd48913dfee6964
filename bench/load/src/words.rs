// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands with placeholders, and how they are encoded. It knows nothing of connections.

/// A command as it is written on the command line: words between blanks, in which
/// `{key}`, `{token}`, `{number}`, `{random}` and `{ttl}` stand for what the number of the turn makes of them.
pub struct Command(Vec<Vec<Piece>>);

#[derive(Clone)]
enum Piece {
    Text(Vec<u8>),
    /// 17 bytes.
    Key,
    /// 22 bytes.
    Token,
    /// The token's number, as short as it is.
    Number,
    /// 16 hexadecimal digits in no order.
    Random,
    /// One to two hours in milliseconds, in no order.
    Ttl,
}

const NAMES: [(&str, Piece); 5] = [
    ("{key}", Piece::Key),
    ("{token}", Piece::Token),
    ("{number}", Piece::Number),
    ("{random}", Piece::Random),
    ("{ttl}", Piece::Ttl),
];
const HOUR_MS: u64 = 3_600_000;

/// The commands of a line, which stand between lone slashes.
pub fn commands(line: &str) -> Vec<Command> {
    line.split(" / ").map(|command| Command(command.split_whitespace().map(pieces).collect())).collect()
}

fn pieces(mut word: &str) -> Vec<Piece> {
    let mut found = Vec::new();
    let next = |word: &str| {
        NAMES
            .iter()
            .filter_map(|(name, piece)| Some((word.find(name)?, name.len(), piece)))
            .min_by_key(|hit| hit.0)
    };
    while let Some((at, length, piece)) = next(word) {
        found.push(Piece::Text(word[..at].into()));
        found.push(piece.clone());
        word = &word[at + length..];
    }
    found.push(Piece::Text(word.into()));
    found
}

impl Command {
    /// Adds the command to what is to be sent, with the key of one number and the token of another.
    pub fn encode(&self, key: u64, token: u64, out: &mut Vec<u8>) {
        let mut word = Vec::with_capacity(64);
        out.extend(format!("*{}\r\n", self.0.len()).bytes());
        for pieces in &self.0 {
            word.clear();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => word.extend(text),
                    Piece::Key => word.extend(format!("key-{key:013}").bytes()),
                    Piece::Token => word.extend(format!("token-{token:016}").bytes()),
                    Piece::Number => word.extend(token.to_string().bytes()),
                    Piece::Random => word.extend(format!("{:016x}", mixed(token)).bytes()),
                    Piece::Ttl => word.extend((HOUR_MS + mixed(token) % HOUR_MS).to_string().bytes()),
                }
            }
            out.extend(format!("${}\r\n", word.len()).bytes());
            out.extend(&word);
            out.extend(b"\r\n");
        }
    }
}

/// SplitMix64: other numbers for other numbers, in no order.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::commands;

    #[test]
    fn a_line_is_commands_with_what_stands_for_a_number_filled_in() {
        let mut bytes = Vec::new();
        for command in commands("SET a:{key} {token}:{number} / DEL a:{key}") {
            command.encode(7, 8, &mut bytes);
        }
        let expected: &[u8] = b"*3\r\n$3\r\nSET\r\n$19\r\na:key-0000000000007\r\n\
            $24\r\ntoken-0000000000000008:8\r\n*2\r\n$3\r\nDEL\r\n$19\r\na:key-0000000000007\r\n";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }
}
