// The board and the keyboard: what a person types becomes messages of OpenEnv's protocol, and the answers colours.
// Knows no rules and no secret. The first guess opens the session; one that was lost is opened again, the same way, also
// after the page was loaded anew, which Gradio does by itself when the server was away.

const GUESSES = 6, LETTERS = 5, ANSWER_MS = 10_000;
const ROWS = ["qwertyuiop", "asdfghjkl", "\u21b5zxcvbnm\u232b"];
const NAMES = { "+": "right place", "?": "other place", "-": "not in the word" };
const BEST_FIRST = "+?-";
const find = (place) => element.querySelector(place);

// In a frame of another site, a browser may refuse the page its storage; a game is then not kept when it is loaded anew.
const kept = (() => {
  try {
    return window.sessionStorage;
  } catch {
    return { getItem: () => null, setItem: () => {} };
  }
})();

let game, session, typed, early; // `early`: the keys pressed while an answer is under way, else null

function newGame() {
  const { words, seed } = find("form.new").elements;
  const drawn = crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
  const chosen = { words: words.value, seed: seed.value === "" ? drawn : Number(seed.value) };
  return { ...chosen, tries: [], over: false, said: "Type a word and press Enter." };
}

function say(sentence) {
  find(".say").textContent = sentence;
}

// ---- The session

function Session(game) {
  let socket = null, left = false;

  function connect() {
    return new Promise((resolve, reject) => {
      const opened = new WebSocket(new URL("ws", location.href).href.replace(/^http/, "ws"));
      opened.onopen = () => (left ? opened.close() : resolve(opened));
      opened.onclose = () => reject(new Error("The server cannot be reached."));
    });
  }

  function ask(message) {
    return new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error("The server does not answer.")), ANSWER_MS);
      socket.onclose = (event) => reject(new Error(event.reason || "The connection was lost."));
      socket.onmessage = (event) => {
        const answer = JSON.parse(event.data);
        if (answer.type === "error") reject(new Error(answer.data.message));
        else resolve(answer.data);
      };
      socket.send(JSON.stringify(message));
    });
  }

  async function resume() {
    if (socket && socket.readyState === WebSocket.OPEN) return;
    socket = await connect();
    await ask({ type: "reset", data: { seed: game.seed, words: game.words } });
    for (const { word } of game.tries) await ask({ type: "step", data: { word } });
  }

  function leave() {
    left = true;
    if (socket) socket.close();
    socket = null;
  }

  async function play(word) {
    left = false;
    await resume();
    return ask({ type: "step", data: { word } });
  }

  return { play, leave };
}

async function guess() {
  const mine = session, word = typed;
  early = [];
  say("...");
  try {
    const { observation, done } = await mine.play(word);
    if (mine === session) take(word, observation, done);
  } catch (error) {
    mine.leave();
    if (mine === session) fail(error);
  }
}

function fail(error) {
  early = null;
  say(game.said = `${error.message} Press Enter to try again.`);
}

function take(word, observation, done) {
  game.tries.push({ word, marks: observation.marks });
  game.over = done;
  typed = "";
  if (done) session.leave();
  say(game.said = outcome(observation, done));
  draw();
  const keys = early;
  early = null;
  keys.forEach(type);
}

function outcome(observation, done) {
  const end = ` The word was ${(observation.secret || "").toUpperCase()}; seed ${game.seed}.`;
  if (observation.won) return `Solved in ${game.tries.length}.${end}`;
  if (done) return `Not solved.${end}`;
  return `${observation.valid ? "" : `That cost a guess: ${observation.reason}. `}Guesses left: ${observation.tries_left}.`;
}

// ---- What is typed and shown

function type(key) {
  if (game.over) return;
  if (early) {
    early.push(key);
    return;
  }
  if (key === "Enter" && typed.length < LETTERS) say(`A word has ${LETTERS} letters.`);
  else if (key === "Enter") guess();
  else if (key === "Backspace") typed = typed.slice(0, -1);
  else if (typed.length < LETTERS) typed += key;
  draw();
}

function tile(letter, mark) {
  const shown = document.createElement("div");
  shown.className = "tile";
  shown.textContent = letter.toUpperCase();
  shown.dataset.mark = mark;
  shown.setAttribute("role", "img");
  shown.setAttribute("aria-label", letter ? `${letter}${NAMES[mark] ? `, ${NAMES[mark]}` : ""}` : "empty");
  return shown;
}

function draw() {
  kept.setItem("game", JSON.stringify(game));
  const rows = [...game.tries, { word: typed, marks: "" }];
  const tiles = [];
  for (let row = 0; row < GUESSES; row++) {
    const { word = "", marks = "" } = rows[row] || {};
    const unplayed = row < game.tries.length && !marks ? "x" : "";
    for (let i = 0; i < LETTERS; i++) tiles.push(tile(word[i] || "", marks[i] || unplayed));
  }
  find(".board").replaceChildren(...tiles);
  for (const key of element.querySelectorAll(".keys button")) colour(key);
}

function colour(key) {
  const marks = game.tries.flatMap(({ word, marks }) => [...marks].filter((_, i) => word[i] === key.dataset.key));
  const best = [...BEST_FIRST].find((mark) => marks.includes(mark)) || "";
  key.dataset.mark = best;
  key.setAttribute("aria-label", key.dataset.name + (best ? `, ${NAMES[best]}` : ""));
}

function keyboard() {
  for (const row of ROWS) {
    const line = document.createElement("div");
    for (const sign of row) {
      const key = document.createElement("button");
      key.type = "button";
      key.textContent = sign.toUpperCase();
      key.dataset.key = { "\u21b5": "Enter", "\u232b": "Backspace" }[sign] || sign;
      key.dataset.name = key.dataset.key;
      key.onmousedown = (event) => event.preventDefault(); // or the next Enter would press this key again
      key.onclick = () => type(key.dataset.key);
      line.append(key);
    }
    find(".keys").append(line);
  }
}

document.addEventListener("keydown", (event) => {
  const elsewhere = event.target.closest("input, select, a") || event.ctrlKey || event.metaKey || event.altKey;
  if (elsewhere || (event.target.closest("button") && (event.key === "Enter" || event.key === " "))) return;
  if (/^[a-zA-Z]$/.test(event.key)) type(event.key.toLowerCase());
  else if (event.key === "Enter" || event.key === "Backspace") type(event.key);
});

find("form.new").onsubmit = (event) => {
  event.preventDefault();
  document.activeElement.blur(); // what is typed next belongs to the board
  session.leave();
  begin(newGame());
};

function begin(next) {
  game = next;
  session = new Session(game);
  typed = "";
  early = null;
  find("form.new").elements.words.value = game.words;
  say(game.said);
  draw();
}

keyboard();
begin(JSON.parse(kept.getItem("game")) || newGame());
