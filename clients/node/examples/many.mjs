// A hundred tasks work, and as many at once as there are locks: three. The others wait, over one connection, in order.
//
// node many.mjs 6379

import {setTimeout as sleep} from "node:timers/promises";
import {createClient} from "redis";
import {Locks} from "slock-client";

const [port = "6379"] = process.argv.slice(2);
const client = await createClient({socket: {port: Number(port)}}).connect(); // or: new Redis({port: Number(port)})
const locks = new Locks(client);
let atWork = 0;
let most = 0;
let done = 0;

async function task(number) {
  await locks.write(`example:many:${number % 3}`).run(async (signal) => {
    most = Math.max(most, ++atWork);
    await sleep(5, undefined, {signal}); // the work
    atWork -= 1;
    done += 1;
  });
}

await Promise.all(Array.from({length: 100}, (_, number) => task(number)));
console.log(`${done} tasks, at most ${most} at once`);
client.destroy();
