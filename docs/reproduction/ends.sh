# S6 with article or line ends (docs/reproduction-language.md): 2 layers of 128, a BPE of 2,000 tokens, 600 steps.
# Scored on 213,886 words; "text only" counts the 365,801 tokens that are neither white space nor an end.
# "Per word without ends" and "text only" are not logged: they are sums of predict_step's log-likelihoods.
mkdir wikitext-2 && cp WIKITEXT-2/test.txt wikitext-2/train.txt && cp WIKITEXT-2/valid.txt wikitext-2/valid.txt && cp WIKITEXT-2/valid.txt wikitext-2/test.txt
lra-ssm prepare wikitext2 --source=wikitext-2 --tokenizer=bpe:2000  # its tokenizer.json, copied here, for all
lightning fit --config configs/lm/wikitext103/mamba.yaml --experiment=lines --data.documents=line --seed_everything=0 --data.version=2 --data.source=wikitext-2 --data.tokenizer=tokenizer.json --data.length=256 --data.batch_size=16 --model.network.vocab_size=2000 --model.network.d_model=128 --model.network.n_layers=2 --model.optimizer.lr=0.003 --model.optimizer.roles.recurrent.lr_factor=1 --model.optimizer.warmup_steps=50 --trainer.max_steps=600 --trainer.accelerator=cpu --trainer.precision=32-true --trainer.accumulate_grad_batches=1 --trainer.val_check_interval=200
lightning validate --config RUN/config.yaml --ckpt_path=RUN/checkpoints/last.ckpt --data.documents=article
