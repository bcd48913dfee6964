// A wait on a connection of its own: the server answers when it grants, or when the wait is over.

import {NoAnswer, type Answer} from "./answers.js";
import {now} from "./clock.js";
import type {Command, Key} from "./commands.js";
import {textOf} from "./errors.js";
import {ask, type Servers} from "./servers.js";
import type {Stop} from "./stop.js";

// How long a server has at least, and at most, to say that it is there, in ms.
const LEAST_PING_MS = 300;
const MOST_PING_MS = 5_000;

// It is asked again after twice the time each time, in ms.
const FIRST_PAUSE_MS = 1_000;
const MOST_PAUSE_MS = 20_000;

/**
 * The answer to a command that waits. A wait is silent by nature. So now and then the server is asked, over another
 * connection, whether it is there: `heard()` is called when it is. When it is not, and `outageEnd()` has passed, the wait
 * ends.
 */
export async function block(
  servers: Servers,
  key: Key,
  command: Command,
  until: number,
  stop: Stop,
  heard: () => void,
  outageEnd: () => number,
): Promise<Answer> {
  let pause = FIRST_PAUSE_MS;
  const look = async (): Promise<number> => {
    const pingEnd = Math.min(until, Math.max(outageEnd(), now() + LEAST_PING_MS), now() + MOST_PING_MS);
    try {
      await ask(servers, key, [["PING"]], pingEnd);
    } catch (error) {
      // Of the command that waits it is not known whether it was executed.
      if (now() >= outageEnd()) throw new NoAnswer(`the server is silent: ${textOf(error)}`, false, error);
      return Math.max(0, Math.min(FIRST_PAUSE_MS, outageEnd() - now()));
    }
    heard();
    pause = Math.min(2 * pause, MOST_PAUSE_MS);
    return pause;
  };
  const [answer] = await ask(servers, key, [command], until, {look, stop});
  return answer;
}
