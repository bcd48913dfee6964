// A process that is stopped past its ttl does not know that its lock has ended. The storage refuses its write by the
// fencing token: here a script on the same server, which knows the greatest one that has written.
//
// node fenced.mjs 6379

import {Redis} from "ioredis";
import {Locks} from "slock-client";

const WRITE = `
  if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then return 'refused' end
  redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'text', ARGV[2])
  return 'written'`;

const [port = "6379"] = process.argv.slice(2);
const client = new Redis({port: Number(port)});
const locks = new Locks(client);
const write = (hold, text) => client.eval(WRITE, 1, "example:page", hold.fence, text);

const slow = await locks.write("example:page:lock", {ttlMs: 100, renew: false}).acquire();
const next = await locks.write("example:page:lock").acquire(); // waits until the first has ended
console.log("the next owner's write is", await write(next, "new"));
console.log("the slow owner's write is", await write(slow, "old"));
await next.release();
client.disconnect();
