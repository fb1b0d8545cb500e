// The board and the keyboard: what a person types becomes messages of OpenEnv's protocol, and the answers colours.
// Knows no rules and no secret. The first guess opens the session; one that was lost is opened again, the same way, also
// after the page was loaded anew, which Gradio does by itself when the server was away.

const GUESSES = 6, LETTERS = 5, ANSWER_MS = 10_000;
const ROWS = ["qwertyuiop", "asdfghjkl", "\u21b5zxcvbnm\u232b"];
const NAMES = { "+": "right place", "?": "other place", "-": "not in the word" };
const BEST_FIRST = "+?-";
const find = (place) => element.querySelector(place);

let socket = null, busy = false, typed = "", game = JSON.parse(sessionStorage.getItem("game")) || newGame();

function newGame() {
  const { words, seed } = find("form.new").elements;
  const drawn = crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
  return { words: words.value, seed: seed.value === "" ? drawn : Number(seed.value), tries: [], over: false };
}

function say(sentence) {
  find(".say").textContent = sentence;
}

// ---- The session

function connect() {
  return new Promise((resolve, reject) => {
    const opened = new WebSocket(new URL("ws", location.href).href.replace(/^http/, "ws"));
    opened.onopen = () => resolve(opened);
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
  if (socket) socket.close();
  socket = null;
}

async function guess() {
  const played = game;
  busy = true;
  say("...");
  try {
    await resume();
    const { observation, done } = await ask({ type: "step", data: { word: typed } });
    if (played === game) take(observation, done);
  } catch (error) {
    leave();
    if (played === game) say(`${error.message} Press Enter to try again.`);
  }
  busy = false;
}

function take(observation, done) {
  game.tries.push({ word: typed, marks: observation.marks });
  game.over = done;
  typed = "";
  if (done) leave();
  const end = ` The word was ${(observation.secret || "").toUpperCase()}; seed ${game.seed}.`;
  if (observation.won) say(`Solved in ${game.tries.length}.${end}`);
  else if (done) say(`Not solved.${end}`);
  else say(`${observation.valid ? "" : `That cost a guess: ${observation.reason}. `}Guesses left: ${observation.tries_left}.`);
  draw();
}

// ---- What is typed and shown

function type(key) {
  if (busy || game.over) return;
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
  sessionStorage.setItem("game", JSON.stringify(game));
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
  leave();
  game = newGame();
  typed = "";
  say("Type a word and press Enter.");
  draw();
};

keyboard();
draw();
