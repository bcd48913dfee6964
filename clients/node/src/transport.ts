// SPDX-License-Identifier: MIT OR Apache-2.0

// The one interface to Redis client libraries.

/**
 * What `Locks` needs of a Redis client library. It makes one of each client that it knows, and `slock-client/testing`
 * has one that needs no server.
 */
export interface Transport {
  readonly topology: Topology;
  /**
   * Sends a command, perhaps more than once, and gives its reply. Rejects when there is none within `limitMs`; what was
   * sent may be carried out later. A `TypeError` means that there will never be one, for example because the program has
   * closed its client.
   */
  call(call: Call, limitMs: number): Promise<Reply>;
  /**
   * Subscribes to a channel by SSUBSCRIBE, on the primary that has the channel's slot. `heard` is called with each
   * message, and `changed` when the server has confirmed the subscription and whenever a message may have been missed. It
   * does not wait for the server. A channel may be listened to again after `stop`.
   */
  listen(channel: string, heard: (payload: string) => void, changed: () => void): () => void;
  /** Ends the connections that it has made, but for subscriptions. If it is used after that, it makes new ones. */
  close(): void;
}

/** What a `Transport` sends. */
export interface Call {
  /** A key of the command: it goes to the primary that has it. If it is empty, to each primary. */
  readonly key: string;
  readonly command: readonly string[];
  /** A command that follows on the same connection. */
  readonly then?: readonly string[] | undefined;
  /** Whether it goes over a connection that the program's own commands cannot occupy. */
  readonly reserved?: boolean | undefined;
}

/** A reply: a number, a text, null, an array, a map as an object or an array, or a `ReplyError`. */
export interface Reply {
  /** If the key was empty, an array of the replies of all primaries. */
  readonly value: unknown;
  /** The reply to the command that followed. */
  readonly then?: unknown;
  /** Whether the Redis client library may have sent the command more than once. */
  readonly isRepeated?: boolean;
}

/** The servers behind a `Transport`. */
export interface Topology {
  /** The address, for texts of errors. */
  readonly name: string;
  /** Whether keys and channels belong to slots. */
  readonly isCluster?: boolean;
  /** Whether another server, which may lack some locks, can take over while the former one still replies (Sentinel). */
  readonly hasFailover?: boolean;
  /** What the Redis client library puts before each key of the commands that it knows. */
  readonly prefix?: string | undefined;
}

/** An error reply of the server. Its text begins with the code; its cause is the error of the Redis client library. */
export class ReplyError extends Error { override name = "ReplyError"; }

/** How a call that nobody answers ends. @internal */
export class SilentError extends Error { override message = "the connection is silent"; }
